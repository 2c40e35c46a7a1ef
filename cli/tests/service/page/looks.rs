//! Every view, in light and dark, on a desk and on a phone: pictures for people, and no barriers.

use std::thread;
use std::time::Duration;

use serde_json::json;

use super::browser::Browser;
use super::service::Service;

const LONG: Duration = Duration::from_secs(3600);

/// The views, and a word that is there once they are drawn.
const VIEWS: [(&str, &str, &str); 5] = [
    ("locks", "locks", "orders/"),
    ("lock", "lock/orders%2F42", "next is"),
    ("sessions", "sessions", "worker"),
    ("elections", "elections", "scheduler"),
    ("service", "service", "Grants"),
];

#[test]
#[ignore = "long: several seconds"]
fn every_view_can_be_read_by_everybody() {
    let service = Service::start(&[]);
    let clients: Vec<_> =
        (1..=6).map(|number| service.client(&format!("worker-{number} on host-{number}"), LONG)).collect();
    let _held: Vec<_> =
        (0..40).map(|number| clients[number % 6].lock(format!("orders/{number}")).acquire().unwrap()).collect();
    let browser = Browser::start();
    browser.open(&service.page("locks"));
    browser.run(
        "fetch('/v1/elections/campaign', { method: 'POST', headers: { 'content-type': 'application/json' }, \
         body: JSON.stringify({ name: 'scheduler', ttl_ms: 600000, value: '10.0.0.1:80' }) })",
    );
    browser.until_text(".summary", "41 locks");
    let first = clients[0].lock("orders/42").acquire().unwrap();
    let waiting: Vec<_> = clients[1..4]
        .iter()
        .map(|client| {
            let request = client.lock("orders/42");
            thread::spawn(move || request.acquire()?.release())
        })
        .collect();
    for scheme in ["light", "dark"] {
        for width in [1280, 360] {
            browser.look(width, scheme);
            for (name, view, word) in VIEWS {
                browser.open(&service.page(view));
                browser.until_text("main", word);
                browser.until("it is drawn", "return document.getElementById('state').textContent === 'Live'");
                browser.picture(&format!("{name}-{scheme}-{width}"));
                assert_eq!(browser.barriers(), json!([]), "{name}, {scheme}, {width} pixels wide");
                let beyond = browser.run("return document.documentElement.scrollWidth - innerWidth");
                assert!(beyond.as_i64().is_some_and(|pixels| pixels <= 0), "{name} is too wide by {beyond}");
            }
        }
    }
    assert_eq!(browser.complaints(), [] as [String; 0]);
    first.release().unwrap();
    for waiter in waiting {
        waiter.join().unwrap().unwrap();
    }
}
