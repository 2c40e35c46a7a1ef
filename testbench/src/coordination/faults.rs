//! Holders, waiters, connections and servers that fail.

use std::rc::Rc;
use std::time::Duration;

use palisade::engine::{Acquire, Acquired, Caller, Engine, Failure, Label, Patience, Released, RequestNo, Ttl, Want};
use palisade::{BootInstant, LockName, Loss, Mode, SessionId, Standing, Token};
use tokio::task::{LocalSet, spawn_local};

use super::Store;
use super::bench::{Fixture, Stores, try_take};
use crate::bounded::{until, until_some, within};
use crate::conformance::stalls::{give_back, is_renewed, short_ttls, unless_lost, until_queued_or_ended};
use crate::fenced_file::FencedFile;
use crate::fixture::{
    LONG_TTL, inspect, retryable, take, taken, taking, token, until_idle, until_lock, until_queued,
};
use crate::proxy::Towards;

/// Longer than a lost connection takes to be replaced, also on a machine that stands still meanwhile.
const TTL: Duration = Duration::from_secs(60);

/// Fault 1, and fault 9 with processes.
pub async fn a_stopped_holder_is_overtaken_and_its_write_is_refused<S: Store>(stores: &Stores<S>) {
    let (fixture, folder) = (stores.shared(), tempfile::tempdir().expect("a folder"));
    let path = folder.path().join("number");
    let file = path.display();
    let [mut old, mut new, mut third] =
        [S::SHORT_TTL, LONG_TTL, LONG_TTL].map(|ttl| stores.worker(&fixture.url(), ttl, &[]));
    let mut granted = old.ask("acquire orders");
    for _ in 0..20 {
        if granted.starts_with("granted ") {
            break;
        }
        // On a machine that stands still, its session may be lost before it is granted.
        granted = old.ask("acquire orders");
    }
    assert!(granted.starts_with("granted "), "{granted}");
    assert_eq!(old.ask(&format!("seal {file}")), "sealed 0");
    old.stop();
    // Only the end of the old session can free the lock.
    let granted = new.ask("acquire orders");
    let newer: u64 = granted.strip_prefix("granted ").and_then(|token| token.parse().ok()).expect("a token");
    assert_eq!(new.ask(&format!("seal {file}")), "sealed 0");
    assert_eq!(new.ask(&format!("write {file} 1")), "written 1");
    // It goes on in its section, as if it had looked at its lock just before it was stopped.
    old.go_on();
    assert_eq!(old.ask(&format!("write {file} 1")), "superseded");
    assert_eq!(old.ask("token"), "lost");
    assert_eq!(old.ask("release"), "lost");
    assert_eq!(third.ask("try orders"), "busy");
    assert_eq!(new.ask("token"), format!("token {newer}"));
    let contents = FencedFile::open(&path).and_then(|mut file| file.contents()).expect("the file can be read");
    assert_eq!(contents.writes, [newer]);
}

/// Fault 4.
pub async fn a_grant_whose_answer_comes_after_the_ttl_is_not_handed_out<S: Store>(stores: &Stores<S>) {
    for ttl in short_ttls(S::SHORT_TTL) {
        let fixture = stores.shared();
        let (alice, bob) = (fixture.through_proxy(ttl).await, fixture.client(LONG_TTL).await);
        fixture.proxy.hold_all(Towards::Client);
        let acquiring = taking(&alice, "lock");
        let is_granted = async || acquiring.is_finished() || inspect(&bob, "lock").await.is_some();
        until("the lock is held", is_granted).await;
        fixture.proxy.black_hole();
        let error = within("the wait ends", acquiring).await.expect("no panic").expect_err("its session is over");
        let guard = take(&bob, "lock").await;
        // The answer comes now.
        fixture.proxy.pass();
        let again = taking(&alice, "lock");
        until_queued_or_ended(&bob, "lock", 1, &again).await;
        let before = token(&guard);
        give_back(&guard).await;
        let again = within("the wait ends", again).await.expect("no panic");
        let Some(again) = unless_lost(again) else { continue };
        let Ok(after) = again.token() else { continue };
        assert!(after > before);
        if matches!(error.loss(), Some(Loss::Unreachable { .. })) {
            return;
        }
        assert!(error.loss().is_some(), "{error}");
    }
}

/// Fault 5.
pub async fn a_waiter_whose_session_dies_in_the_queue_is_told_and_never_granted<S: Store>(stores: &Stores<S>) {
    for ttl in short_ttls(S::SHORT_TTL) {
        let fixture = stores.shared();
        let (alice, bob) = (fixture.through_proxy(ttl).await, fixture.client(LONG_TTL).await);
        let held = take(&bob, "lock").await;
        let waiting = taking(&alice, "lock");
        until_queued_or_ended(&bob, "lock", 1, &waiting).await;
        fixture.proxy.black_hole();
        let told = within("the wait ends", waiting).await.expect("no panic").expect_err("its session is over");
        until_queued(&bob, "lock", 0).await;
        give_back(&held).await;
        until_idle(&bob, "lock").await;
        let next = take(&bob, "lock").await;
        fixture.proxy.pass();
        assert!(try_take(&alice, "lock").await.is_none());
        assert!(next.token().is_ok());
        if matches!(told.loss(), Some(Loss::Unreachable { .. })) {
            return;
        }
        assert!(told.loss().is_some(), "{told}");
    }
}

/// A request that lost its connection may have been carried out: its claim is found again, and not made twice.
pub async fn a_claim_whose_answer_is_lost_is_found_again<S: Store>(stores: &Stores<S>) {
    let fixture = stores.shared();
    let (alice, bob) = (fixture.through_proxy(TTL).await, fixture.client(LONG_TTL).await);
    take(&alice, "first").await.release().await.expect("it is held");
    for round in 0..2 {
        fixture.proxy.hold(Towards::Client);
        let acquiring = taking(&alice, "lock");
        until_lock(&bob, "lock", "is held", |lock| lock.is_some()).await;
        let first = inspect(&bob, "lock").await.expect("it is held").holders[0].token;
        fixture.lose_answers().await;
        let guard = taken(acquiring).await;
        assert_eq!(token(&guard), first, "round {round}");
        let lock = inspect(&bob, "lock").await.expect("it is held");
        assert_eq!((lock.holders.len(), lock.waiters.len()), (1, 0), "round {round}");
        give_back(&guard).await;
        until_idle(&bob, "lock").await;
    }
}

/// Fault 10: the caller goes away, or its time is over, before the answer comes.
pub async fn an_acquire_that_is_given_up_while_its_answer_is_lost_is_undone<S: Store>(stores: &Stores<S>) {
    let fixture = stores.shared();
    let (alice, bob) = (fixture.through_proxy(TTL).await, fixture.client(LONG_TTL).await);
    take(&alice, "first").await.release().await.expect("it is held");
    fixture.proxy.hold(Towards::Client);
    let acquiring = taking(&alice, "lock");
    until_lock(&bob, "lock", "is held", |lock| lock.is_some()).await;
    acquiring.abort();
    fixture.lose_answers().await;
    until_idle(&bob, "lock").await;

    take(&alice, "first").await.release().await.expect("it is held");
    fixture.proxy.hold(Towards::Client);
    let late = alice.lock("late").acquire_within(Duration::from_millis(20)).await;
    assert!(late.is_ok_and(|guard| guard.is_none()), "there was no answer");
    until_lock(&bob, "late", "is held", |lock| lock.is_some()).await;
    fixture.lose_answers().await;
    until_idle(&bob, "late").await;
}

/// Fault 9: the answer of a release is lost, and another client has the lock when the release is repeated.
pub async fn a_repeated_release_frees_no_newer_grant_of_another_client<S: Store>(stores: &Stores<S>) {
    let fixture = stores.shared();
    let (alice, bob) = (fixture.through_proxy(TTL).await, fixture.client(LONG_TTL).await);
    let guard = take(&alice, "lock").await;
    let first = token(&guard);
    fixture.proxy.hold(Towards::Client);
    let releasing = tokio::spawn(async move { (guard.release().await, guard) });
    let newer = take(&bob, "lock").await;
    fixture.lose_answers().await;
    let (_, guard) = within("the release ends", releasing).await.expect("no panic");
    drop(guard.release().await);
    drop(guard);
    assert!(try_take(&alice, "lock").await.is_none());
    assert!(token(&newer) > first);
    newer.release().await.expect("it is held");
}

/// Fault 8: the same with a session that has the lock again. The engine itself is asked, so that the repetition certainly comes
/// after the newer grant.
pub async fn a_repeated_release_frees_no_newer_grant_of_the_same_session<S: Store>(stores: &Stores<S>) {
    let fixture = stores.shared();
    let bob = fixture.client(LONG_TTL).await;
    let on_engine = async {
        let own = OpenEngine::<S>::open(&fixture.url_at(fixture.proxy.address)).await;
        let first = own.acquire(1).await;
        fixture.proxy.hold(Towards::Client);
        let releasing = {
            let own = own.clone();
            spawn_local(async move { own.release(first).await })
        };
        until_idle(&bob, "lock").await;
        fixture.lose_answers().await;
        drop(within("the release ends", releasing).await);
        let second = own.acquire(2).await;
        assert!(second > first);
        drop(own.release(first).await);
        let lock = inspect(&bob, "lock").await.expect("the session has it again");
        assert_eq!(lock.holders.iter().map(|holder| holder.token).collect::<Vec<_>>(), [second]);
        own.release(second).await.expect("it is held");
        until_idle(&bob, "lock").await;
    };
    LocalSet::new().run_until(on_engine).await;
}

/// Fault 8: the acquire is given up, and reaches the store after that on its old connection.
pub async fn an_acquire_that_arrives_late_leaves_no_claim<S: Store>(stores: &Stores<S>) {
    let fixture = stores.shared();
    let (alice, bob) = (fixture.through_proxy(TTL).await, fixture.client(LONG_TTL).await);
    take(&alice, "first").await.release().await.expect("it is held");
    fixture.proxy.hold(Towards::Server);
    let connections = fixture.proxy.accepted();
    let acquiring = alice.lock("lock").acquire_within(Duration::from_millis(20)).await;
    assert!(acquiring.is_ok_and(|guard| guard.is_none()), "there was no answer");
    fixture.proxy.until_accepted(connections + 1).await;
    give_back(&until_some("a lock", async || retryable(alice.lock("first").acquire().await)).await).await;
    if S::REMEMBERS_REQUESTS {
        let is_noted = async || fixture.keys().await.iter().any(|key| key.contains("done/")).then_some(());
        until_some("the store has noted that the acquire was given up", is_noted).await;
    }
    fixture.proxy.pass();
    fixture.proxy.until_ended(connections).await;
    assert!(try_take(&bob, "lock").await.is_some());
}

/// Fault 9: the release reaches the store once more on its old connection, when the session has the lock again.
pub async fn a_release_that_arrives_late_frees_no_newer_grant<S: Store>(stores: &Stores<S>) {
    let fixture = stores.shared();
    let (alice, bob) = (fixture.through_proxy(TTL).await, fixture.client(LONG_TTL).await);
    let guard = take(&alice, "lock").await;
    fixture.proxy.hold(Towards::Server);
    let connections = fixture.proxy.accepted();
    give_back(&guard).await;
    assert!(fixture.proxy.accepted() > connections, "it was released on another connection");
    let newer = until_some("a lock", async || retryable(alice.lock("lock").acquire().await)).await;
    fixture.proxy.pass();
    fixture.proxy.until_ended(connections).await;
    let holders = inspect(&bob, "lock").await.expect("it is held").holders;
    assert_eq!(holders.iter().map(|holder| holder.token).collect::<Vec<_>>(), [token(&newer)]);
    assert!(newer.token().is_ok());
}

/// Fault 11. The two requests are sent together, in both orders.
pub async fn a_release_that_races_a_keep_alive_frees_the_lock<S: Store>(stores: &Stores<S>) {
    let fixture = stores.shared();
    let bob = fixture.client(LONG_TTL).await;
    let on_engine = async {
        let own = OpenEngine::<S>::open(&fixture.url()).await;
        for number in 1..=20 {
            let token = own.acquire(number).await;
            let (released, kept) = match number % 2 {
                0 => tokio::join!(own.release(token), own.engine.keep_alive(own.session)),
                _ => {
                    let (kept, released) = tokio::join!(own.engine.keep_alive(own.session), own.release(token));
                    (released, kept)
                }
            };
            released.expect("it is held");
            kept.expect("the session is open");
            assert_eq!(inspect(&bob, "lock").await, None);
        }
        // A keep-alive after the release renews the session, and not the lock.
        own.engine.keep_alive(own.session).await.expect("the session is open");
        assert!(try_take(&bob, "lock").await.is_some());
    };
    LocalSet::new().run_until(on_engine).await;
}

/// The same with a close: no keep-alive revives the session. Its TTL is an hour, so no other event removes its keys.
pub async fn a_close_that_races_a_keep_alive_ends_the_session<S: Store>(stores: &Stores<S>) {
    let fixture = stores.shared();
    let on_engine = async {
        for round in 0..6 {
            let own = OpenEngine::<S>::open(&fixture.url()).await;
            own.acquire(1).await;
            let (engine, session) = (&own.engine, own.session);
            let closed = match round % 2 {
                0 => tokio::join!(engine.close_session(session), engine.keep_alive(session)).0,
                _ => tokio::join!(engine.keep_alive(session), engine.close_session(session)).1,
            };
            closed.expect("closed");
            assert!(engine.keep_alive(session).await.is_err(), "round {round}");
        }
        until("no key is left", async || fixture.keys().await.is_empty()).await;
    };
    LocalSet::new().run_until(on_engine).await;
}

/// The same with an acquire whose answer comes after the close was sent.
pub async fn a_close_that_races_an_acquire_ends_the_session<S: Store>(stores: &Stores<S>) {
    let fixture = stores.shared();
    let bob = fixture.client(LONG_TTL).await;
    let held = take(&bob, "lock").await;
    let on_engine = async {
        let own = OpenEngine::<S>::open(&fixture.url_at(fixture.proxy.address)).await;
        fixture.proxy.hold(Towards::Client);
        let acquiring = {
            let own = own.clone();
            spawn_local(async move { own.engine.acquire(own.request(1)).await })
        };
        until_queued(&bob, "lock", 1).await;
        let closing = {
            let own = own.clone();
            spawn_local(async move { own.engine.close_session(own.session).await })
        };
        // The close begins before the answers come.
        tokio::task::yield_now().await;
        fixture.proxy.pass();
        drop(within("the close ends", closing).await);
        let close = async || own.engine.close_session(own.session).await.ok();
        until_some("the session is closed", close).await;
        until_queued(&bob, "lock", 0).await;
        // The keeper drops the acquires of a session that it closes, so the engine need not answer them.
        acquiring.abort();
    };
    LocalSet::new().run_until(on_engine).await;
    held.release().await.expect("it is held");
}

/// Fault 12. The link is cut until the session is in jeopardy, so that at least one keep-alive fails. A third of the TTL is left to
/// recover in.
pub async fn a_link_that_heals_in_time_loses_nothing<S: Store>(stores: &Stores<S>) {
    for ttl in short_ttls(Duration::from_secs(9)) {
        let fixture = stores.shared();
        let (alice, bob) = (fixture.through_proxy(ttl).await, fixture.client(LONG_TTL).await);
        let Some(guard) = unless_lost(alice.lock("lock").acquire().await) else { continue };
        let Ok(first) = guard.token() else { continue };
        fixture.proxy.cut();
        if !is_renewed(&guard).await {
            continue;
        }
        fixture.proxy.black_hole();
        let standing = within("the lock is in jeopardy", guard.jeopardy()).await;
        fixture.lose_answers().await;
        if !matches!(standing, Standing::Jeopardy { .. }) || !is_renewed(&guard).await {
            continue;
        }
        assert!(try_take(&bob, "lock").await.is_none());
        assert_eq!((guard.standing(), token(&guard)), (Standing::Held, first));
        give_back(&guard).await;
        return;
    }
}

/// Fault 13.
pub async fn a_holder_that_is_cut_off_is_told_before_another_has_its_lock<S: Store>(stores: &Stores<S>) {
    for ttl in short_ttls(S::SHORT_TTL) {
        let fixture = stores.shared();
        let (alice, bob) = (fixture.through_proxy(ttl).await, fixture.client(LONG_TTL).await);
        let Some(guard) = unless_lost(alice.lock("lock").acquire().await) else { continue };
        let waiting = taking(&bob, "lock");
        until_queued_or_ended(&bob, "lock", 1, &waiting).await;
        let granted = tokio::spawn(async move { (taken(waiting).await, BootInstant::now()) });
        fixture.proxy.black_hole();
        let loss = within("the loss is noticed", guard.lost()).await;
        let (newer, granted_at) = granted.await.expect("no panic");
        fixture.proxy.pass();
        assert!(guard.release().await.is_err());
        assert!(newer.token().is_ok());
        assert!(try_take(&alice, "lock").await.is_none());
        if let Loss::Unreachable { safe_until } = loss {
            assert!(safe_until <= granted_at, "another client had the lock while this one was safe");
            return;
        }
    }
}

/// Acknowledged locks survive a crash of the server, and a stop that is shorter than the TTL.
pub async fn locks_and_queues_survive_a_killed_and_a_stopped_server<S: Store>(stores: &Stores<S>) {
    // Two thirds of the TTL are waited for, and one is left to recover in.
    for ttl in short_ttls(Duration::from_secs(20)) {
        let mut fixture: Fixture<S> = stores.alone();
        let (alice, bob) = (fixture.client(ttl).await, fixture.client(LONG_TTL).await);
        let Some(guard) = unless_lost(alice.lock("lock").acquire().await) else { continue };
        let Ok(first) = guard.token() else { continue };
        let waiting = taking(&bob, "lock");
        until_queued_or_ended(&bob, "lock", 1, &waiting).await;
        fixture.store_mut().kill(0);
        fixture.store_mut().restart(0).expect("it starts again");
        let lock = inspect(&bob, "lock").await.expect("one of them holds it");
        if !matches!(guard.standing(), Standing::Lost(_)) {
            assert_eq!((lock.holders[0].token, lock.waiters.len()), (first, 1));
        }
        if !is_renewed(&guard).await {
            continue;
        }

        fixture.store().stop(0);
        let other = taking(&alice, "other");
        // At least one keep-alive is not answered.
        let standing = within("the lock is in jeopardy", guard.jeopardy()).await;
        fixture.store().go_on(0);
        let other = within("the wait ends", other).await.expect("no panic");
        let Some(other) = unless_lost(other).filter(|_| matches!(standing, Standing::Jeopardy { .. })) else {
            continue;
        };
        let (Ok(of_other), Ok(of_first)) = (other.token(), guard.token()) else { continue };
        assert!(of_other > first);
        assert_eq!(of_first, first);
        give_back(&guard).await;
        assert!(token(&taken(waiting).await) > first);
        return;
    }
}

/// A session of the engine itself, without a keeper.
struct OpenEngine<S: Store> {
    engine: Rc<S::Engine>,
    session: SessionId,
}

impl<S: Store> Clone for OpenEngine<S> {
    fn clone(&self) -> OpenEngine<S> {
        OpenEngine { engine: self.engine.clone(), session: self.session }
    }
}

impl<S: Store> OpenEngine<S> {
    async fn open(url: &str) -> OpenEngine<S> {
        let engine = Rc::new(S::connect(url).await.expect("an engine"));
        let ttl = Ttl::from_ms(LONG_TTL.as_millis() as u64).expect("a TTL");
        let session = engine.open_session(ttl, Label::new("an engine")).await.expect("opened").session;
        OpenEngine { engine, session }
    }

    fn request(&self, number: u64) -> Acquire {
        let caller = Caller { session: self.session, number: Some(RequestNo::new(number).expect("a number")) };
        let mut acquire = Acquire::many(caller, vec![Want { lock: lock(), mode: Mode::Exclusive }]);
        acquire.patience = Patience::Wait;
        acquire
    }

    /// Acquires `lock`, with this number of a request.
    async fn acquire(&self, number: u64) -> Token {
        match within("it is granted", self.engine.acquire(self.request(number))).await.expect("its turn comes") {
            Acquired::Granted { token } => token,
            Acquired::Busy => panic!("it does not wait"),
        }
    }

    async fn release(&self, token: Token) -> Result<Released, Failure> {
        within("the release ends", self.engine.release(self.session, lock(), token)).await
    }
}

fn lock() -> LockName {
    LockName::new("lock").expect("a name")
}
