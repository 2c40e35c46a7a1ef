//! Invalid input is refused with a typed error, and changes nothing.

use std::time::Duration;

use palisade::{BadName, BadNumber, LockName, Misuse, Options, Palisade, Refusal, Token};

use super::bench::{Bench, is_fenced, is_misuse, is_unsupported, ok};

/// Every call that takes a name accepts the same names.
pub async fn a_bad_name_is_refused_by_every_call(bench: &Bench) {
    let client = bench.client().await;
    let longest = LockName::MAX_BYTES;
    let names = [
        (String::new(), BadName::Empty),
        ("x".repeat(longest + 1), BadName::TooLong { length: longest + 1, max: longest }),
        ("a\0b".to_owned(), BadName::Control { at: 1 }),
        ("line\nbreak".to_owned(), BadName::Control { at: 4 }),
        ("esc\u{1b}[31m".to_owned(), BadName::Control { at: 3 }),
        ("c1\u{9b}31m".to_owned(), BadName::Control { at: 2 }),
        ("$mine".to_owned(), BadName::Reserved),
    ];
    for (name, why) in &names {
        let bad = Misuse::Name(*why);
        for misuse in refusals(&client, name).await {
            assert_eq!(misuse, bad);
        }
    }
    // Other tests may use the same store.
    if !client.guarantees().offers.list {
        return;
    }
    let locks = ok(client.list("").await);
    assert!(!locks.iter().any(|lock| names.iter().any(|(name, _)| lock.name.as_str() == name)), "{locks:?}");
}

async fn refusals(client: &Palisade, name: &str) -> Vec<Misuse> {
    let offers = client.guarantees().offers;
    let one = Token::new(1).expect("it is one");
    let mut all = vec![
        is_misuse(client.lock(name).efficiency().acquire().await),
        is_misuse(client.lock(name).efficiency().try_acquire().await),
        is_misuse(client.lock(name).efficiency().acquire_within(Duration::ZERO).await),
        is_misuse(client.inspect(name).await),
        is_misuse(client.election(name).leader().await),
    ];
    if is_fenced(client.guarantees()) {
        all.push(is_misuse(client.lock(name).acquire().await));
        all.push(is_misuse(client.lock(name).run(async |_| ()).await));
    }
    if offers.shared {
        all.push(is_misuse(client.rw_lock(name).read().efficiency().acquire().await));
    }
    if offers.permits {
        all.push(is_misuse(client.semaphore(name, 2).many(1).efficiency().acquire().await));
        all.push(is_misuse(client.resize(name, 2).await));
    }
    if offers.several {
        all.push(is_misuse(client.lock_all(["good", name]).efficiency().acquire().await));
    }
    if offers.values && is_fenced(client.guarantees()) {
        all.push(is_misuse(client.election(name).campaign("me").await));
    }
    if offers.force_release {
        all.push(is_misuse(client.force_release(name, "a test").await));
        all.push(is_misuse(client.force_release_only(name, one, "a test").await));
    }
    if offers.watch {
        all.push(is_misuse(client.election(name).observe().await.map(drop)));
    }
    all
}

/// No session is opened with a TTL that is zero, too short or too long.
pub async fn a_bad_ttl_is_refused(bench: &Bench) {
    let connect = async |ttl| is_misuse(bench.connect(Options::new().ttl(ttl)).await);
    let zero = Misuse::Number(BadNumber::Zero { what: "ttl_ms" });
    assert_eq!(connect(Duration::ZERO).await, zero);
    assert_eq!(connect(Duration::from_micros(999)).await, zero);
    let misuse = connect(Duration::from_millis(1)).await;
    assert!(matches!(misuse, Misuse::Refused(Refusal::UnderLimit { value: 1, .. })), "{misuse:?}");
    let misuse = connect(Duration::from_secs(46 * 24 * 3600)).await;
    assert!(matches!(misuse, Misuse::Refused(Refusal::OverLimit { .. })), "{misuse:?}");
    for ttl in [Duration::from_millis(1 << 32), Duration::MAX] {
        let misuse = connect(ttl).await;
        assert!(matches!(misuse, Misuse::Number(BadNumber::TooLarge { .. })), "{misuse:?}");
    }
}

/// A lock-delay has a lower and an upper limit.
pub async fn a_bad_delay_is_refused(bench: &Bench) {
    let (client, name) = (bench.client().await, bench.name("lock"));
    let ask = async |delay| client.lock(&name).delay(delay).efficiency().acquire().await;
    if !client.guarantees().offers.delay {
        return is_unsupported(ask(Duration::ZERO).await);
    }
    assert_eq!(is_misuse(ask(Duration::ZERO).await), Misuse::Number(BadNumber::Zero { what: "delay_ms" }));
    let misuse = is_misuse(ask(Duration::from_secs(46 * 24 * 3600)).await);
    assert!(matches!(misuse, Misuse::Refused(Refusal::OverLimit { .. })), "{misuse:?}");
    let misuse = is_misuse(ask(Duration::MAX).await);
    assert!(matches!(misuse, Misuse::Number(BadNumber::TooLarge { .. })), "{misuse:?}");
    assert_eq!(ok(client.inspect(&name).await), None);
}

/// No permits, more than there are, a semaphore without any.
pub async fn a_bad_number_of_permits_is_refused(bench: &Bench) {
    let (client, name) = (bench.client().await, bench.name("gpu"));
    let ask = async |count, of| client.semaphore(&name, of).many(count).efficiency().acquire().await;
    if !client.guarantees().offers.permits {
        return is_unsupported(ask(0, 4).await);
    }
    for (count, of) in [(0, 4), (5, 4), (1, 0), (0, 0), (u32::MAX, u32::MAX)] {
        let misuse = is_misuse(ask(count, of).await);
        let refused = matches!(misuse, Misuse::Refused(Refusal::BadPermits { .. } | Refusal::BadLimit { .. }));
        assert!(refused, "{count} of {of}: {misuse:?}");
    }
    assert_eq!(ok(client.inspect(&name).await), None);
}

/// A set has at least one lock, and each of them once.
pub async fn a_set_without_locks_or_with_one_twice_is_refused(bench: &Bench) {
    let (client, name) = (bench.client().await, bench.name("lock"));
    let ask = async |names: &[&str]| client.lock_all(names.iter().copied()).efficiency().acquire().await;
    assert_eq!(is_misuse(ask(&[]).await), Misuse::Refused(Refusal::NoLocks));
    if !client.guarantees().offers.several {
        return is_unsupported(ask(&[&name, &name]).await);
    }
    let misuse = is_misuse(ask(&[&name, &name]).await);
    assert!(matches!(misuse, Misuse::Refused(Refusal::NamedTwice { .. })), "{misuse:?}");
    assert_eq!(ok(client.inspect(&name).await), None);
}

/// Labels, reasons and values have their limits.
pub async fn what_is_too_long_is_refused(bench: &Bench) {
    const MUCH: usize = 1 << 20;
    let (client, name) = (bench.client().await, bench.name("lock"));
    let over = |misuse| assert!(matches!(misuse, Misuse::Refused(Refusal::OverLimit { .. })), "{misuse:?}");
    over(is_misuse(bench.connect(Options::new().label("x".repeat(MUCH))).await));
    let offers = client.guarantees().offers;
    if offers.values && is_fenced(client.guarantees()) {
        over(is_misuse(client.election(&name).campaign(vec![0; MUCH]).await));
        assert_eq!(ok(client.inspect(&name).await), None);
        let leadership = ok(client.election(&name).campaign("short").await);
        over(is_misuse(leadership.publish(vec![0; MUCH]).await));
        let leader = ok(client.election(&name).leader().await).expect("it leads");
        assert_eq!(leader.value, b"short");
        ok(leadership.release().await);
    }
    let held = ok(client.lock(&name).efficiency().acquire().await);
    if offers.force_release {
        over(is_misuse(client.force_release(&name, &"x".repeat(MUCH)).await));
    }
    assert_eq!(held.standing(), palisade::Standing::Held);
    ok(held.release().await);
}

/// The error for a mistyped URL lists the schemes.
pub async fn a_url_that_leads_nowhere_is_refused(bench: &Bench) {
    drop(bench.client().await);
    for url in ["", "nowhere:", "://", "redis\u{1b}[2J:"] {
        let error = palisade::connect(url).await.map(drop).expect_err("there is no such engine");
        let text = error.to_string();
        assert!(text.contains("memory:"), "{text}");
        assert!(!text.chars().any(char::is_control), "{text:?}");
        assert!(matches!(is_misuse(Err::<(), _>(error)), Misuse::Url(_)));
    }
}
