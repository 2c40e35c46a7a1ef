//! Members that share partitions.

use std::any::Any;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::future::select_all;
use palisade::recipe::{Change, Member};
use palisade::{Error, ErrorKind, Misuse, Options, Token};
use palisade_testbench::bounded::{BOUND, block_until, check, until_some, within};
use palisade_testbench::fenced_file::FencedFile;
use palisade_testbench::fixture::{LONG_TTL, unused_name};
use palisade_testbench::servers::{self, Absent};
use palisade_testbench::worker_process::WorkerProcess;
use tempfile::TempDir;

/// The TTL of sessions that must end. They outlive a standstill of ten seconds before that.
const SHORT_TTL: Duration = Duration::from_secs(18);
/// How long a member has to let go of a partition, unless it says otherwise.
const GRACE: Duration = Duration::from_secs(10);

fn present<S>(started: Result<S, Absent>) -> S {
    started.unwrap_or_else(|absent| panic!("{absent}"))
}

async fn join(url: &str, name: &str, count: u32) -> Result<Member, Error> {
    let palisade = Options::new().connect(url).await?;
    // A partition must not be taken from a test that is slow to let go of it.
    palisade.partitions(name, count).grace(LONG_TTL).dangerous_accept_failover().join(count).await
}

/// Handles changes as an application does, until each member owns its number of partitions and has seen that. Returns how many were
/// given up.
async fn settle(members: &mut [Member], shares: &[usize]) -> usize {
    let mut given_up = 0;
    loop {
        let is_settled = members.iter().zip(shares).all(|(member, share)| member.owned().len() == *share);
        let change = select_all(members.iter_mut().map(|member| Box::pin(member.next())));
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

/// What every engine has to do that can list and watch locks.
fn share_and_move_no_more_than_necessary(url: &str) {
    check(BOUND, async {
        let name = unused_name("orders");
        let mut members = vec![join(url, &name, 8).await.expect("a member")];
        assert_eq!(settle(&mut members, &[8]).await, 0);
        let first = tokens(&members[0]);
        members.push(join(url, &name, 8).await.expect("a member"));
        assert_eq!(settle(&mut members, &[4, 4]).await, 4);
        for (partition, token) in tokens(&members[1]) {
            assert!(token > first[partition as usize].1, "partition {partition} has a newer token");
        }
        members.remove(0).leave().await.expect("it leaves");
        assert_eq!(settle(&mut members, &[8]).await, 0);
        members.remove(0).leave().await.expect("it leaves");
    });
}

fn tokens(member: &Member) -> Vec<(u32, Token)> {
    let owned = member.owned();
    owned.iter().map(|owned| (owned.partition(), owned.token().expect("it is owned"))).collect()
}

#[test]
fn memory() {
    share_and_move_no_more_than_necessary("memory:partitions");
}

#[test]
fn redis() {
    let folder = tempfile::tempdir().expect("a folder");
    let redis = present(servers::Redis::start(folder.path(), "no"));
    share_and_move_no_more_than_necessary(&redis.url());
}

#[test]
fn mysql() {
    let folder = tempfile::tempdir().expect("a folder");
    let mariadb = present(servers::MariaDb::start(folder.path()));
    share_and_move_no_more_than_necessary(&mariadb.url());
}

#[test]
fn zookeeper() {
    let folder = tempfile::tempdir().expect("a folder");
    let zookeeper = present(servers::ZooKeeper::start(folder.path()));
    share_and_move_no_more_than_necessary(&format!("zookeeper://{}", zookeeper.address));
}

#[test]
fn consul() {
    let folder = tempfile::tempdir().expect("a folder");
    let consul = present(servers::Consul::start(folder.path()));
    share_and_move_no_more_than_necessary(&format!("consul://{}", consul.address));
}

#[cfg(feature = "etcd")]
#[test]
fn etcd() {
    let folder = tempfile::tempdir().expect("a folder");
    let etcd = present(servers::Etcd::start(folder.path()));
    share_and_move_no_more_than_necessary(&format!("etcd://{}", etcd.address));
}

#[test]
fn an_engine_that_cannot_watch_is_refused_by_name() {
    let folder = tempfile::tempdir().expect("a folder");
    let nodes = ["a", "b", "c"].map(|node| present(servers::Redis::start(&folder.path().join(node), "no")));
    let url = format!("redlock://{}", nodes.each_ref().map(|node| node.address.to_string()).join(","));
    check(BOUND, async {
        let palisade = Options::new().connect(&url).await.expect("a client");
        let error = palisade.partitions("orders", 8).join(8).await.expect_err("it cannot watch");
        assert!(matches!(error.kind(), ErrorKind::Unsupported { .. }), "{error}");
        assert!(error.to_string().contains("way to watch"), "{error}");
    });
}

#[test]
fn an_engine_that_cannot_fence_is_refused_unless_it_is_accepted() {
    let folder = tempfile::tempdir().expect("a folder");
    let redis = present(servers::Redis::start(folder.path(), "no"));
    check(BOUND, async {
        let palisade = Options::new().connect(&redis.url()).await.expect("a client");
        let error = palisade.partitions("orders", 8).join(8).await.expect_err("its tokens can go back");
        assert!(matches!(error.kind(), ErrorKind::Unsupported { .. }), "{error}");
        assert!(error.to_string().contains("dangerous_accept_failover"), "{error}");
    });
}

/// Locks, and a folder for files.
struct Store {
    url: String,
    folder: TempDir,
    /// The server, which ends with this.
    _server: Option<Box<dyn Any>>,
}

impl Store {
    fn embedded() -> Store {
        let folder = tempfile::tempdir().expect("a folder");
        Store { url: format!("embedded://{}", folder.path().join("locks.db").display()), folder, _server: None }
    }

    fn service() -> Store {
        let folder = tempfile::tempdir().expect("a folder");
        let service = present(servers::Service::start(env!("CARGO_BIN_EXE_serve"), folder.path()));
        Store { url: service.url(), folder, _server: Some(Box::new(service)) }
    }

    fn postgres() -> Store {
        let folder = tempfile::tempdir().expect("a folder");
        let postgres = present(servers::Postgres::start(folder.path()));
        Store { url: postgres.url(), folder, _server: Some(Box::new(postgres)) }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A process that is a member.
    fn member(&self, ttl: Duration, count: u32) -> WorkerProcess {
        let mut worker = WorkerProcess::spawn(&mut Command::new(env!("CARGO_BIN_EXE_worker"))).expect("a worker");
        assert_eq!(worker.ask(&format!("connect {} {}", self.url, ttl.as_millis())), "connected");
        assert_eq!(worker.ask(&format!("join orders {count}")), "joined");
        worker
    }
}

/// The processes of these tests are killed and stopped, so their engines must be outside of them.
macro_rules! on_engines {
    ($($engine:ident),*) => {$(
        mod $engine {
            use super::*;

            #[test]
            fn members_share_and_move_no_more_than_necessary() {
                share_and_move_no_more_than_necessary(&Store::$engine().url);
            }

            #[test]
            #[ignore = "long: waits of several TTLs"]
            fn the_partitions_of_a_killed_member_go_to_the_others() {
                kill_a_member(&Store::$engine());
            }

            #[test]
            #[ignore = "long: waits of several TTLs"]
            fn a_stopped_owner_loses_no_update_of_its_successor() {
                let (number, acknowledged) = stop_an_owner_between_read_and_write(&Store::$engine(), true);
                assert_eq!((number, acknowledged), (1, 1), "the late write is refused");
            }
        }
    )*};
}

on_engines!(embedded, service, postgres);

fn kill_a_member(store: &Store) {
    let mut killed = store.member(SHORT_TTL, 6);
    for _ in 0..6 {
        assert!(killed.ask("change").starts_with("gained"));
    }
    check(BOUND, async {
        let began = Instant::now();
        let mut members = vec![join(&store.url, "orders", 6).await.expect("a member")];
        let mut losing = Vec::new();
        for _ in 0..3 {
            losing.push(killed.ask("change"));
        }
        let is_empty = members[0].owned().is_empty();
        if began.elapsed() < GRACE {
            assert!(losing.iter().all(|change| change.starts_with("losing")), "{losing:?}");
            assert!(is_empty, "the old owner has not let go");
        }
        killed.kill();
        settle(&mut members, &[6]).await;
    });
}

/// One update of a partition's number: read it, and write one more.
struct Update {
    /// What the writer read before it was stopped.
    read: u64,
    was_acknowledged: bool,
}

/// An owner reads a number and is stopped before it writes. Its successor reads and writes. Then the first one goes on,
/// as a thread does that was stopped between a check and a write, and writes what it computed. Returns the number in the file
/// and how many updates were acknowledged.
fn stop_an_owner_between_read_and_write(store: &Store, is_fenced: bool) -> (u64, u64) {
    let file = store.file("partition-0");
    let path = file.display();
    let (mut old, mut updates) = (store.member(SHORT_TTL, 1), Vec::new());
    assert_eq!(old.ask("change"), "gained 0");
    old.ask("own 0");
    updates.push(Update { read: read(&mut old, &file, is_fenced), was_acknowledged: false });
    old.stop();
    let mut new = store.member(LONG_TTL, 1);
    // Only the end of the old session can free the partition.
    assert_eq!(new.ask("change"), "gained 0");
    new.ask("own 0");
    updates.push(Update { read: read(&mut new, &file, is_fenced), was_acknowledged: false });
    old.go_on();
    for (worker, update) in [&mut new, &mut old].into_iter().zip(updates.iter_mut().rev()) {
        let write = if is_fenced { "write" } else { "overwrite" };
        let reply = worker.ask(&format!("{write} {path} {}", update.read + 1));
        update.was_acknowledged = reply == format!("written {}", update.read + 1);
        assert!(update.was_acknowledged || reply == "superseded", "{reply}");
    }
    // The old owner finds out that it owns nothing. It stays a member: when the other one leaves, it owns the partition again.
    assert_eq!(old.ask("change"), "lost 0");
    new.close_input();
    new.until_ended();
    assert_eq!(old.ask("change"), "gained 0");
    let number = match is_fenced {
        true => FencedFile::open(&file).expect("the file").contents().expect("its contents").writes.len() as u64,
        false => fs::read_to_string(&file).expect("the file").parse().expect("a number"),
    };
    (number, updates.iter().filter(|update| update.was_acknowledged).count() as u64)
}

fn read(worker: &mut WorkerProcess, file: &Path, is_fenced: bool) -> u64 {
    if is_fenced {
        let reply = worker.ask(&format!("seal {}", file.display()));
        return reply.strip_prefix("sealed ").and_then(|number| number.parse().ok()).expect("it is sealed");
    }
    fs::read_to_string(file).ok().and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// The failure that the token of each ownership prevents.
#[test]
#[ignore = "long: killed and stopped processes"]
fn without_tokens_a_stopped_owner_overwrites_the_update_of_its_successor() {
    let (number, acknowledged) = stop_an_owner_between_read_and_write(&Store::embedded(), false);
    assert_eq!((number, acknowledged), (1, 2), "two updates are acknowledged, and one is lost");
}

#[test]
#[ignore = "long: several seconds"]
fn a_member_whose_engine_is_gone_for_a_while_loses_everything_and_comes_back() {
    let folder = tempfile::tempdir().expect("a folder");
    let service = present(servers::Service::start(env!("CARGO_BIN_EXE_serve"), folder.path()));
    let proxy = palisade_testbench::proxy::Proxy::start(service.address).expect("a proxy");
    check(BOUND, async {
        let palisade =
            Options::new().ttl(SHORT_TTL).connect(&format!("palisade://{}", proxy.address)).await.expect("a client");
        let mut member = palisade.partitions("orders", 2).join(2).await.expect("a member");
        let next = async |member: &mut Member| within("a change", member.next()).await.expect("it is a member");
        for _ in 0..2 {
            assert!(matches!(next(&mut member).await, Change::Gained(_)));
        }
        let before = tokens(&member);
        proxy.shut();
        let mut lost = 0;
        while lost < 2 {
            match next(&mut member).await {
                Change::Losing { deadline, .. } => assert!(deadline.left() <= SHORT_TTL),
                Change::Lost { .. } => lost += 1,
                other => panic!("{other:?}"),
            }
        }
        assert!(member.owned().is_empty());
        proxy.pass();
        for _ in 0..2 {
            assert!(matches!(next(&mut member).await, Change::Gained(_)));
        }
        for (before, after) in before.iter().zip(tokens(&member)) {
            assert!(after.1 > before.1);
        }
    });
}

/// Its group has another number of partitions by now, and the same key would be in two partitions.
#[test]
#[ignore = "long: several seconds"]
fn a_member_that_comes_back_to_another_number_of_partitions_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let service = present(servers::Service::start(env!("CARGO_BIN_EXE_serve"), folder.path()));
    let proxy = palisade_testbench::proxy::Proxy::start(service.address).expect("a proxy");
    check(BOUND, async {
        let through = format!("palisade://{}", proxy.address);
        let palisade = Options::new().ttl(SHORT_TTL).connect(&through).await.expect("a client");
        let mut member = palisade.partitions("orders", 2).join(2).await.expect("a member");
        proxy.shut();
        let direct = format!("palisade://{}", service.address);
        // It is refused until the first member's session has ended.
        let _other = until_some("another member", async || join(&direct, "orders", 3).await.ok()).await;
        proxy.pass();
        let ended = async {
            loop {
                if let Err(error) = member.next().await {
                    return error;
                }
            }
        };
        let error = within("it is refused", ended).await;
        let ErrorKind::Misuse(Misuse::PartitionCount { ours, theirs }) = error.kind() else { panic!("{error}") };
        assert_eq!((*ours, *theirs), (2, 3));
    });
}

#[test]
fn a_member_process_that_ends_in_order_leaves_nothing_behind() {
    let store = Store::embedded();
    let mut leaving = store.member(LONG_TTL, 3);
    assert!(leaving.ask("change").starts_with("gained"));
    leaving.close_input();
    leaving.until_ended();
    block_until("nothing is held", || {
        check(BOUND, async {
            let palisade = Options::new().connect(&store.url).await.expect("a client");
            !palisade.list("orders/").await.expect("a list").iter().any(|lock| lock.is_in_use())
        })
    });
}
