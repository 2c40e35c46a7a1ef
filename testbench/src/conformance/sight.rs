//! Inspecting, listing and watching locks.

use palisade::{Ending, Event, Loss, Mode};

use super::bench::{Bench, close, is_fenced, is_lost, is_unsupported, join, next_event, ok, take, taking, try_take};

/// Holders, waiters, and recent ends of grants.
pub async fn inspection_shows_holders_waiters_and_history(bench: &Bench) {
    let (alice, bob) = (bench.client_called("alice").await, bench.client_called("bob").await);
    let name = bench.name("lock");
    let first = take(&alice, &name).await;
    let waiter = taking(&bob, &name);
    bench.until_queued(&alice, &name, 1).await;
    let before = ok(bob.inspect(&name).await).expect("it is held");
    assert_eq!((before.name.as_str(), before.limit, before.value), (name.as_str(), None, None));
    assert_eq!((before.holders.len(), before.holders[0].mode), (1, Mode::Exclusive));
    let (alice_seen, bob_seen) = (bench.seen("alice"), bench.seen("bob"));
    assert_eq!(before.holders[0].label.as_ref(), Some(&alice_seen));
    if is_fenced(alice.guarantees()) {
        assert_eq!(before.holders[0].token, first.token());
    }
    if alice.guarantees().order == palisade::engine::Order::Fair {
        let waiters: Vec<_> = before.waiters.iter().map(|waiter| (waiter.label.as_str(), waiter.mode)).collect();
        assert_eq!(waiters, [(bob_seen.as_str(), Mode::Exclusive)]);
        assert_ne!(Some(before.waiters[0].session), before.holders[0].session);
    }
    ok(first.release().await);
    let second = ok(join(waiter).await).expect("it is bob's turn");
    let after = ok(alice.inspect(&name).await).expect("it is held");
    assert_eq!((after.holders[0].label.as_ref(), after.waiters.len()), (Some(&bob_seen), 0));
    if alice.guarantees().order == palisade::engine::Order::Fair {
        let history: Vec<_> = after.history.iter().map(|ended| (ended.label.as_str(), ended.how.as_str())).collect();
        assert_eq!(history, [(alice_seen.as_str(), "released")]);
        assert_eq!(after.history[0].token, before.holders[0].token);
    }
    ok(second.release().await);
}

/// A lock without holder and waiter is not shown.
pub async fn inspection_of_an_idle_lock_shows_nothing(bench: &Bench) {
    let (client, name) = (bench.client().await, bench.name("lock"));
    assert_eq!(ok(client.inspect(&name).await), None);
    ok(take(&client, &name).await.release().await);
    assert_eq!(ok(client.inspect(&name).await), None);
}

/// A list has every lock in use with this prefix, and no other.
pub async fn a_list_shows_what_is_in_use_sorted_by_name(bench: &Bench) {
    let (alice, bob) = (bench.client().await, bench.client().await);
    if !alice.guarantees().offers.list {
        return is_unsupported(alice.list(&bench.name("")).await);
    }
    assert_eq!(ok(alice.list(&bench.name("")).await), []);
    let names = ["b/2", "a/2", "b/1", "a/1", "b/3"].map(|name| bench.name(name));
    let mut held = Vec::new();
    for (name, client) in names.iter().zip([&alice, &bob].into_iter().cycle()) {
        held.push(take(client, name).await);
    }
    ok(held.pop().expect("five are held").release().await);
    let list = async |prefix: &str| {
        let locks = ok(alice.list(&bench.name(prefix)).await);
        locks.into_iter().map(|lock| lock.name.to_string()).collect::<Vec<_>>()
    };
    let expect = |names: &[&str]| names.iter().map(|name| bench.name(name)).collect::<Vec<_>>();
    assert_eq!(list("").await, expect(&["a/1", "a/2", "b/1", "b/2"]));
    assert_eq!(list("b/").await, expect(&["b/1", "b/2"]));
    assert_eq!(list("b/3").await, expect(&[]));
    assert_eq!(list("c").await, expect(&[]));
}

/// A watch reports every event of its locks, and none of others.
pub async fn a_watch_shows_what_happens_in_order(bench: &Bench) {
    let (alice, bob, name) = (bench.client().await, bench.client().await, bench.name("seen/1"));
    let before = take(&alice, &bench.name("seen/0")).await;
    if !alice.guarantees().offers.watch {
        return is_unsupported(alice.watch(&bench.name("seen/")).await.map(drop));
    }
    let mut watch = ok(bob.watch(&bench.name("seen/")).await);
    let hidden = take(&alice, &bench.name("hidden")).await;
    let first = take(&alice, &name).await;
    let event = next_event(&mut watch).await;
    let Event::Granted { locks, session, token, ticket: None, .. } = event else { panic!("{event:?}") };
    assert_eq!(locks.iter().map(|lock| lock.as_str()).collect::<Vec<_>>(), [name.as_str()]);
    if is_fenced(alice.guarantees()) {
        assert_eq!(token, first.token());
    }

    let waiter = taking(&bob, &name);
    let event = next_event(&mut watch).await;
    let Event::Queued { ticket: place, session: waiting, .. } = event else { panic!("{event:?}") };
    assert_ne!(waiting, session);
    ok(first.release().await);
    let event = next_event(&mut watch).await;
    let Event::GrantEnded { token: ended, how: Ending::Released, .. } = event else { panic!("{event:?}") };
    assert_eq!(ended, token);
    let event = next_event(&mut watch).await;
    let Event::Granted { session: next, token: higher, ticket: Some(ticket), .. } = event else {
        panic!("{event:?}")
    };
    assert_eq!((next, ticket), (waiting, place));
    assert!(higher > token);
    let second = ok(join(waiter).await).expect("it is bob's turn");
    ok(before.release().await);
    let event = next_event(&mut watch).await;
    let Event::GrantEnded { locks, .. } = event else { panic!("{event:?}") };
    assert_eq!(locks[0].as_str(), bench.name("seen/0"));
    drop((second, hidden));
}

/// A watch ends when its client is closed.
pub async fn a_watch_ends_with_its_client(bench: &Bench) {
    let (alice, bob, name) = (bench.client().await, bench.client().await, bench.name("lock"));
    if !alice.guarantees().offers.watch {
        return is_unsupported(alice.watch(&name).await.map(drop));
    }
    let mut closed = ok(bob.watch(&name).await);
    close(bob.clone()).await;
    let carol = bench.client().await;
    let mut dropped = ok(carol.watch(&name).await);
    drop(carol);
    let held = take(&alice, &name).await;
    assert_eq!(closed.next().await, None);
    assert_eq!(dropped.next().await, None);
    drop((held, bob));
}

/// Labels are any text, and come back byte for byte. What people read in errors is escaped.
pub async fn labels_come_back_as_they_were_given_and_are_escaped_in_errors(bench: &Bench) {
    const NASTY: &str = "\u{1b}[2J\u{7}eve\r\n\u{202e}lim\u{0}🦀";
    let (alice, eve, name) = (bench.client().await, bench.client_called(NASTY).await, bench.name("lock"));
    let held = take(&eve, &name).await;
    let lock = ok(alice.inspect(&name).await).expect("it is held");
    assert_eq!(lock.holders[0].label, Some(bench.seen(NASTY)));
    ok(held.release().await);
    if alice.guarantees().offers.force_release {
        let held = take(&alice, &name).await;
        ok(eve.force_release(&name, NASTY).await);
        let loss = held.lost().await;
        assert_eq!(loss, Loss::ForcedBy { by: bench.seen(NASTY), reason: NASTY.to_owned() });
        let error = held.release().await.expect_err("it was taken away");
        for text in [error.to_string(), loss.to_string()] {
            assert!(!text.chars().any(char::is_control), "{text:?}");
            assert!(!text.contains('\u{202e}'), "{text:?}");
        }
        assert_eq!(is_lost(Err::<(), _>(error)), loss);
    }
    // An invalid name appears in the error, and is escaped there too.
    let error = alice.inspect(NASTY).await.expect_err("it has control characters");
    assert!(!error.to_string().chars().any(char::is_control), "{error}");
    assert!(try_take(&alice, &name).await.is_some());
}
