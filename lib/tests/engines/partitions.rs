//! Members that share partitions, in one process.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::FutureExt;
use palisade::recipe::{Change, Member};
use palisade::{BootInstant, ErrorKind, Loss, Misuse, Options, Palisade};

/// Longer than anything here takes on a loaded machine.
const BOUND: Duration = Duration::from_secs(300);
/// A partition must not be taken from a test that is slow to let go of it.
const GRACE: Duration = Duration::from_secs(3600);

async fn connect(url: &str) -> Palisade {
    Options::new().connect(url).await.expect("a client")
}

async fn join(url: &str, count: u32, capacity: u32) -> Member {
    connect(url).await.partitions("orders", count).grace(GRACE).join(capacity).await.expect("a member")
}

async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(BOUND, future).await.unwrap_or_else(|_| panic!("waited in vain until {what}"))
}

async fn next(member: &mut Member) -> Change {
    within("a change comes", member.next()).await.expect("it is a member")
}

/// Handles changes as an application does, until each member owns its number of partitions and has seen that. Returns how many were
/// given up.
async fn settle(members: &mut [Member], shares: &[usize]) -> usize {
    let mut given_up = 0;
    loop {
        let is_settled = members.iter().zip(shares).all(|(member, share)| member.owned().len() == *share);
        let change = futures_util::future::select_all(members.iter_mut().map(|member| Box::pin(member.next())));
        let (change, at, _) = match is_settled {
            // A member owns a partition before its application has seen the change.
            true => match change.now_or_never() {
                Some(change) => change,
                None => return given_up,
            },
            false => within("the shares are right", change).await,
        };
        if let Change::Losing { partition, .. } = change.expect("it is a member") {
            members[at].release(partition).await.expect("it is released");
            given_up += 1;
        }
    }
}

#[tokio::test]
async fn members_share_the_partitions_and_move_no_more_than_necessary() {
    let url = "memory:shares";
    let mut members = vec![join(url, 12, 12).await];
    assert_eq!(settle(&mut members, &[12]).await, 0);
    members.push(join(url, 12, 12).await);
    assert_eq!(settle(&mut members, &[6, 6]).await, 6);
    members.push(join(url, 12, 12).await);
    assert_eq!(settle(&mut members, &[4, 4, 4]).await, 4);
    members.pop().expect("three").leave().await.expect("it leaves");
    assert_eq!(settle(&mut members, &[6, 6]).await, 0);
    drop(members.pop());
    assert_eq!(settle(&mut members, &[12]).await, 0);
}

#[tokio::test]
async fn every_ownership_has_a_higher_token_than_the_one_before() {
    let url = "memory:tokens";
    let mut members = vec![join(url, 4, 4).await];
    settle(&mut members, &[4]).await;
    let tokens = |member: &Member| -> BTreeMap<_, _> {
        member.owned().iter().map(|owned| (owned.partition(), owned.token().expect("it is owned"))).collect()
    };
    let before = tokens(&members[0]);
    let old = members[0].owned();
    members.push(join(url, 4, 4).await);
    settle(&mut members, &[2, 2]).await;
    for (partition, token) in tokens(&members[1]) {
        assert!(token > before[&partition]);
        assert!(old[partition as usize].token().is_err(), "the old owner's token is refused");
    }
}

#[tokio::test]
async fn capacities_bound_what_a_member_owns() {
    let url = "memory:capacities";
    let mut members = vec![join(url, 10, 2).await, join(url, 10, 5).await];
    settle(&mut members, &[2, 5]).await;
    for member in &members {
        within("both have seen each other", async {
            while (member.members(), member.without_room()) != (2, 3) {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }
    members.push(join(url, 10, 10).await);
    settle(&mut members, &[2, 4, 4]).await;
}

#[tokio::test]
async fn a_partition_is_released_at_the_deadline_although_the_application_does_nothing() {
    let url = "memory:deadline";
    let grace = Duration::from_millis(100);
    let mut stuck = connect(url).await.partitions("orders", 2).grace(grace).join(2).await.expect("a member");
    next(&mut stuck).await;
    next(&mut stuck).await;
    let owned = stuck.owned();
    let mut other = join(url, 2, 2).await;
    let Change::Gained(gained) = next(&mut other).await else { panic!("it only gains") };
    let old = owned.iter().find(|owned| owned.partition() == gained.partition()).expect("it had both");
    assert!(old.token().is_err(), "the old owner's token is refused");
    // The application was told nothing before it asked, and then only that the partition is lost.
    let change = next(&mut stuck).await;
    assert!(
        matches!(&change, Change::Lost { partition, loss: Loss::Released } if *partition == gained.partition()),
        "{change:?}"
    );
}

#[tokio::test]
async fn an_application_is_told_before_the_deadline() {
    let url = "memory:told";
    let grace = Duration::from_secs(3600);
    let mut old = connect(url).await.partitions("orders", 2).grace(grace).join(2).await.expect("a member");
    next(&mut old).await;
    next(&mut old).await;
    let mut new = join(url, 2, 2).await;
    let Change::Losing { partition, deadline } = next(&mut old).await else { panic!("it has to give up one") };
    assert!(deadline.left() > grace / 2 && deadline <= BootInstant::now() + grace);
    assert!(old.get(partition).expect("it is owned until then").token().is_ok());
    assert!(new.owned().is_empty(), "the other member waits until it is let go");
    old.release(partition).await.expect("it is released");
    assert!(matches!(next(&mut new).await, Change::Gained(gained) if gained.partition() == partition));
}

#[tokio::test]
async fn a_partition_taken_away_by_force_is_reported_and_comes_back() {
    let url = "memory:forced";
    let mut member = join(url, 1, 1).await;
    let Change::Gained(first) = next(&mut member).await else { panic!("it only gains") };
    let token = first.token().expect("it is owned");
    connect(url).await.force_release("orders/partitions/0000", "it hangs").await.expect("it is held");
    assert!(matches!(next(&mut member).await, Change::Lost { partition: 0, loss: Loss::ForcedBy { .. } }));
    let Change::Gained(again) = next(&mut member).await else { panic!("it is assigned to this member") };
    assert!(again.token().expect("it is owned") > token);
}

#[tokio::test]
async fn a_member_whose_membership_is_taken_away_joins_again_with_nothing() {
    let url = "memory:thrown-out";
    let mut members = vec![join(url, 4, 4).await, join(url, 4, 4).await];
    settle(&mut members, &[2, 2]).await;
    let operator = connect(url).await;
    let session = members[0].session();
    let locks = operator.list("orders/members/").await.expect("a list");
    let lock = locks.iter().find(|lock| lock.holders[0].session == session).expect("its membership");
    operator.force_release(lock.name.as_str(), "it is sick").await.expect("it is held");
    for _ in 0..2 {
        let change = next(&mut members[0]).await;
        assert!(matches!(change, Change::Lost { loss: Loss::ForcedBy { .. }, .. }), "{change:?}");
    }
    settle(&mut members, &[2, 2]).await;
}

#[tokio::test]
async fn the_stream_ends_with_an_error_when_the_client_is_closed() {
    let palisade = connect("memory:closed").await;
    let mut member = palisade.partitions("orders", 1).join(1).await.expect("a member");
    next(&mut member).await;
    palisade.close().await.expect("it closes");
    let ended = within("the stream ends", async {
        loop {
            if let Err(error) = member.next().await {
                break error;
            }
        }
    });
    assert_eq!(ended.await.loss(), Some(&Loss::SessionClosed));
    let again = within("it stays ended", member.next()).await.expect_err("it has ended");
    assert_eq!(again.loss(), Some(&Loss::SessionClosed));
    assert!(within("leaving fails", member.leave()).await.is_err());
}

#[tokio::test]
async fn a_member_that_is_dropped_leaves_nothing_behind() {
    let url = "memory:dropped";
    let mut member = join(url, 3, 3).await;
    next(&mut member).await;
    let kept = member.owned();
    drop(member);
    let operator = connect(url).await;
    within("nothing is held", async {
        while operator.list("orders/").await.expect("a list").iter().any(|lock| lock.is_in_use()) {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert!(kept[0].token().is_err(), "an ownership that outlives its member is of no use");
}

#[tokio::test]
async fn misuse_is_refused_by_name() {
    let palisade = connect("memory:misuse").await;
    for (name, count, capacity, expected) in [
        ("orders", 0, 1, "cannot join 'orders' on memory: the number of partitions must not be 0"),
        ("orders", 1, 0, "cannot join 'orders' on memory: a member's capacity must not be 0"),
        (
            "orders",
            4097,
            1,
            "cannot join 'orders' on memory: the number of partitions 4097 is above the highest possible, 4096",
        ),
        ("", 1, 1, "cannot join '' on memory: a lock's name must not be empty"),
    ] {
        let error = palisade.partitions(name, count).join(capacity).await.expect_err("misuse");
        assert_eq!(error.to_string(), expected);
        assert!(matches!(error.kind(), ErrorKind::Misuse(_)));
    }
    let _member = palisade.partitions("orders", 64).join(1).await.expect("a member");
    let twice = palisade.partitions("orders", 64).join(1).await.expect_err("it is a member");
    assert!(matches!(twice.kind(), ErrorKind::Misuse(Misuse::AlreadyMember)));
    let other = connect("memory:misuse").await.partitions("orders", 128).join(1).await.expect_err("another number");
    assert!(matches!(other.kind(), ErrorKind::Misuse(Misuse::PartitionCount { ours: 128, theirs: 64 })));
    let left: Vec<_> = palisade.list("orders/members/").await.expect("a list");
    assert_eq!(left.iter().filter(|lock| lock.is_in_use()).count(), 1, "the refused member has left");
    let observer = Options::new().observer().connect("memory:misuse").await.expect("a client");
    let error = observer.partitions("orders", 64).join(1).await.expect_err("it has no session");
    assert!(matches!(error.kind(), ErrorKind::Misuse(Misuse::Observer)));
}
