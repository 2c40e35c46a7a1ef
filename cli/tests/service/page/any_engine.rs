//! `palisade page` shows any engine to the one who has started it.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use super::browser::Browser;
use crate::common::bounded::TIMEOUT;
use crate::sandbox::{Running, Sandbox};

/// A running `palisade page`, and the address that it has printed.
struct Page {
    _process: Running,
    address: String,
}

impl Page {
    fn start(sandbox: &Sandbox, options: &[&str]) -> Page {
        let mut process = sandbox.start(&[&["page", "--no-open"], options].concat());
        Page { address: process.line(), _process: process }
    }

    /// The address of a view, without the key.
    fn view(&self, view: &str) -> String {
        let (base, _) = self.address.split_once("?key=").expect("a key");
        format!("{base}#/{view}")
    }
}

#[test]
fn the_page_of_a_file_shows_and_takes_away_if_it_may() {
    let sandbox = Sandbox::new();
    let alice = sandbox.client("alice");
    let held = alice.lock("orders/42").acquire().expect("it is free");
    let taken_at = Instant::now();
    // The page says how long it is held, also if that is longer than the page has been there.
    thread::sleep(Duration::from_secs(3));
    let page = Page::start(&sandbox, &["--allow-break"]);
    let browser = Browser::start();

    browser.open(&page.view("locks"));
    browser.until_text("body", "has a key that only you know");
    browser.open(&page.address);
    browser.until_text(".list-body", "alice");
    browser.open(&page.view("lock/orders%2F42"));
    let sentence = browser.until_text(".sentence", "alice has held orders/42");
    let (_, seconds) = sentence.split_once(" for ").expect("it says since when");
    let seconds: f64 = seconds.split('s').next().and_then(|seconds| seconds.parse().ok()).expect("a few seconds");
    assert!(seconds >= 3.0 && seconds <= taken_at.elapsed().as_secs_f64() + 1.0, "{sentence}");
    browser.until_text(".command code", "palisade --url embedded://");
    browser.click(".break summary");
    browser.type_into(".break [name=reason]", "hangs since noon");
    browser.type_into(".break [name=lock]", "orders/42");
    browser.click(".danger");
    browser.until_text(".break [role=status]", "Seal the resource with");
    let loss = held.token().expect_err("it is lost").to_string();
    assert!(loss.contains("hangs since noon"), "{loss}");
    assert_eq!(browser.complaints(), [] as [String; 0]);
}

/// Other users of the host have no key, and can connect as often as they like.
#[test]
fn silent_connections_of_others_do_not_keep_the_owner_out() {
    let sandbox = Sandbox::new();
    let page = Page::start(&sandbox, &[]);
    let rest = page.address.strip_prefix("http://").expect("an address");
    let (authority, key) = rest.split_once("/?key=").expect("a key");
    let connect = || TcpStream::connect(authority).expect("it accepts");
    let silent: Vec<_> = (0..300).map(|_| connect()).collect();
    for _ in 0..5 {
        let mut stream = connect();
        stream.set_read_timeout(Some(TIMEOUT)).expect("it is set");
        let request = format!("GET /?key={key} HTTP/1.1\r\nhost: {authority}\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).expect("it is sent");
        let mut status = String::new();
        BufReader::new(stream).read_line(&mut status).expect("an answer");
        assert!(status.starts_with("HTTP/1.1 303"), "{status}");
    }
    drop(silent);
}

/// Browsers send cookies to all ports of a host.
#[test]
fn two_pages_on_one_host_do_not_log_each_other_out() {
    let sandbox = Sandbox::new();
    let alice = sandbox.client("alice");
    let _held = alice.lock("orders/42").acquire().expect("it is free");
    let (one, two) = (Page::start(&sandbox, &[]), Page::start(&sandbox, &[]));
    let browser = Browser::start();
    for page in [&one, &two] {
        browser.open(&page.address);
        browser.until_text(".list-body", "alice");
    }
    browser.open(&one.view("locks"));
    browser.until_text(".list-body", "alice");
}

#[test]
fn a_page_that_only_shows_offers_no_way_to_take_a_lock_away() {
    let sandbox = Sandbox::new();
    let alice = sandbox.client("alice");
    let held = alice.lock("orders/42").acquire().expect("it is free");
    let page = Page::start(&sandbox, &[]);
    let browser = Browser::start();
    browser.open(&page.address);
    browser.until_text(".list-body", "alice");
    browser.open(&page.view("lock/orders%2F42"));
    browser.until_text(".sentence", "alice has held orders/42");
    assert!(!browser.has(".break"));
    // A script of the page that tries it anyway is refused.
    browser.run(
        "fetch('/page/break', { method: 'POST', headers: { 'content-type': 'application/json', 'x-palisade-page': '1' }, \
         body: JSON.stringify({ lock: 'orders/42', reason: 'r' }) }).then((answer) => { window.refused = answer.status })",
    );
    browser.until("it is refused", "return window.refused === 403");
    held.release().expect("it is held");
}
