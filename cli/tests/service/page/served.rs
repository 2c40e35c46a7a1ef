//! The page of a service follows what happens.

use std::thread;
use std::time::Duration;

use super::browser::Browser;
use super::service::Service;

const LONG: Duration = Duration::from_secs(3600);

#[test]
fn the_page_follows_a_grant_a_hand_over_a_loss_and_a_break() {
    let service = Service::start(&[]);
    let browser = Browser::start();
    // The page shows the locks at an address that names no view.
    browser.open(&service.page("constructor"));
    browser.until_text("main", "No lock is in use");

    let (alice, bob) = (service.client("alice", LONG), service.client("bob", LONG));
    let held = alice.lock("orders/42").acquire().expect("it is free");
    browser.until_text(".list-body", "alice");
    let waiting = thread::spawn(move || bob.lock("orders/42").acquire().map(|guard| (guard, bob)));

    browser.open(&service.page("lock/orders%2F42"));
    let sentence = browser.until_text(".sentence", "next is bob");
    assert!(sentence.starts_with("alice has held orders/42 for"), "{sentence}");
    held.release().expect("it is held");
    browser.until_text(".sentence", "bob has held orders/42");
    let (_guard, bob) = waiting.join().expect("it does not panic").expect("its turn comes");

    // A holder that is no longer there: its session expires.
    let lost = service.client("carol", Duration::from_secs(10));
    let _guard = lost.lock("stock/7").acquire().expect("it is free");
    browser.open(&service.page("lock/stock%2F7"));
    browser.until_text(".sentence", "carol has held stock/7");
    lost.detach().expect("it leaves");
    browser.until_text("main", "expired");

    browser.open(&service.page("lock/orders%2F42"));
    browser.until_text(".sentence", "bob has held");
    browser.click(".break summary");
    browser.type_into(".break [name=reason]", "hangs since noon");
    browser.type_into(".break [name=lock]", "orders/4");
    assert_eq!(browser.run("return document.querySelector('.danger').disabled"), true, "the name is not complete");
    browser.type_into(".break [name=lock]", "orders/42");
    browser.click(".danger");
    browser.until_text(".break [role=status]", "Seal the resource with");
    browser.until_text("#main", "hangs since noon");
    let audit = service.line_with("hangs since noon");
    assert!(audit.contains("orders/42"), "{audit}");
    drop(bob);
    assert_eq!(browser.complaints(), [] as [String; 0]);
}

/// No client renews the session of a period, and that is no reason for alarm.
#[test]
#[ignore = "long: several seconds"]
fn a_period_of_every_is_not_in_jeopardy() {
    let service = Service::start(&[]);
    let url = format!("palisade://{}", service.resp);
    let browser = Browser::start();
    service.sandbox.stdout(&["--url", &url, "run", "--every", "45s", "nightly", "--", "true"]);
    browser.open(&service.page("locks/nightly.every"));
    browser.until_text(".sentence", "nightly.every is a period of palisade run --every, begun by true on");
    browser.open(&service.page("sessions"));
    browser.until_text(".list-body .c-health", "a period");
    let ends_soon = "parseFloat(document.querySelector('.list-body .c-left')?.textContent) < 14";
    let summary = format!("return {ends_soon} ? document.querySelector('.summary').textContent : null");
    assert_eq!(browser.until("the period ends soon", &summary), "1 session, 0 in jeopardy");
}

/// A grant that comes while the form is filled in is not taken away with the others.
#[test]
fn the_form_takes_only_the_grants_away_that_it_shows() {
    let service = Service::start(&[]);
    let browser = Browser::start();
    let [alice, bob, carol] = ["alice", "bob", "carol"].map(|label| service.client(label, LONG));
    let permit = |client: &palisade::blocking::Palisade| client.permits("gpu", 1, 3).acquire().expect("it is free");
    let (_first, _second) = (permit(&alice), permit(&bob));
    browser.open(&service.page("lock/gpu"));
    browser.until_text(".break select", "of bob");
    browser.click(".break summary");
    let choose = "const grants = document.querySelector('.break select'); grants.value = grants.options[2].value; return grants.value";
    let chosen = browser.run(choose);
    let _third = permit(&carol);
    browser.until_text(".break [role=status]", "changed hands");
    assert_eq!(browser.run("return document.querySelector('.break select').value"), chosen);
    browser.type_into(".break [name=reason]", "hangs");
    browser.type_into(".break [name=lock]", "gpu");
    assert_eq!(browser.run("return document.querySelector('.danger').disabled"), true, "its holders are not shown");
    browser.click(".break [role=status] button");
    browser.until_text(".break select", "of carol");
    assert_eq!(browser.run("return document.querySelector('.danger').disabled"), false);
}

#[test]
fn locks_are_found_by_a_part_of_their_name_or_of_their_holders_label() {
    let service = Service::start(&[]);
    let (alice, bob) = (service.client("alice", LONG), service.client("bob", LONG));
    let _held: Vec<_> = (0..300).map(|number| alice.lock(format!("orders/{number}")).acquire().unwrap()).collect();
    let _other = bob.lock("stock/7").acquire().unwrap();
    let browser = Browser::start();
    browser.open(&service.page("locks"));
    browser.until_text(".summary", "301 locks");
    browser.type_into("#search", "stock");
    browser.until_text(".summary", "1 ");
    browser.until("only that row is there", "return document.querySelectorAll('.list-body .list-row').length === 1");
    browser.type_into("#search", "alice");
    browser.type_into("#prefix", "orders/29");
    browser.until_text(".summary", "11 ");
    // Far more rows than fit are not in the document.
    browser.open("about:blank");
    browser.open(&service.page("locks"));
    browser.until_text(".summary", "301 locks");
    let drawn = browser.run("return document.querySelectorAll('.list-body .list-row').length");
    assert!(drawn.as_u64().is_some_and(|rows| rows < 150), "{drawn}");
    assert_eq!(browser.complaints(), [] as [String; 0]);
}

#[test]
fn the_page_says_that_the_service_is_gone_and_goes_on_when_it_is_back() {
    let mut service = Service::start(&[]);
    let browser = Browser::start();
    let alice = service.client("alice", LONG);
    let _held = alice.lock("orders/42").acquire().unwrap();
    browser.open(&service.page("locks"));
    browser.until_text(".list-body", "alice");
    service.kill();
    browser.until_text("#alert", "lost");
    browser.until_text("#age", "old");
    browser.picture("connection-lost");
    service.restart();
    browser.until_text("#state", "Live");
    assert_eq!(browser.run("return document.getElementById('alert').textContent"), "");
    let _more = alice.lock("stock/7").acquire().unwrap();
    browser.until_text(".list-body", "stock/");
    browser.until_text(".summary", "2 locks");
    assert_eq!(browser.complaints(), [] as [String; 0]);
}

#[test]
fn names_and_labels_of_strangers_are_only_text() {
    let service = Service::start(&[]);
    let client = service.client("<img src=x onerror=alert(1)> \u{202e}evil", LONG);
    let names = [
        "<script>alert(1)</script>",
        "a'b\"c`d$(reboot)",
        "%2e%2e/..",
        &"long/".repeat(100),
        "\u{5e9}\u{5dc}\u{5d5}\u{5dd}",
    ];
    let _held: Vec<_> = names.iter().map(|name| client.lock(*name).acquire().unwrap()).collect();
    let browser = Browser::start();
    browser.open(&service.page("locks"));
    browser.until_text(".summary", "5 locks");
    browser.until_text(".list-body", "<script>alert(1)</script>");
    browser.until_text(".list-body", "<img src=x onerror=alert(1)> \\u{202e}evil");
    assert!(!browser.has("main img") && !browser.has("main script"));
    for view in ["lock/%3Cscript%3Ealert(1)%3C%2Fscript%3E", "lock/a'b%22c%60d%24(reboot)", "lock/%252e%252e%2F.."] {
        browser.open(&service.page(view));
        browser.until_text(".sentence", "has held");
    }
    browser.open(&service.page("lock/a'b%22c%60d%24(reboot)"));
    browser.until_text(".command code", "show 'a'\\''b\"c`d$(reboot)'");
    browser.look(360, "light");
    for view in ["locks", "sessions", "lock/%3Cscript%3Ealert(1)%3C%2Fscript%3E"] {
        browser.open(&service.page(view));
        browser.until_text("main", "evil");
        let beyond = browser.run("return document.documentElement.scrollWidth - innerWidth");
        assert!(beyond.as_i64().is_some_and(|pixels| pixels <= 0), "{view} is too wide by {beyond}");
    }
    assert_eq!(browser.complaints(), [] as [String; 0]);
}
