//! Readers of the page are users of the service.

use std::fs;

use palisade::{Options, blocking};
use palisade_server::access::Secret;

use super::browser::Browser;
use super::service::Service;

const USERS: [(&str, &str); 3] = [
    ("ops", "[{ verbs = ['admin'], prefix = '' }]"),
    ("shop", "[{ verbs = ['observe', 'acquire'], prefix = 'shop/' }]"),
    ("blind", "[{ verbs = ['acquire'], prefix = '' }]"),
];

/// A service with users, and their secrets in the order of [`USERS`].
fn guarded() -> (Service, Vec<String>) {
    let secrets: Vec<Secret> = USERS.iter().map(|_| Secret::random().expect("random bytes")).collect();
    let users = USERS.iter().zip(&secrets).map(|((name, rules), secret)| {
        format!("[[serve.users]]\nname = '{name}'\nsecret_hash = '{}'\nrules = {rules}\n", secret.hash())
    });
    let folder = tempfile::tempdir().expect("a directory");
    let file = folder.path().join("palisade.toml");
    fs::write(&file, users.collect::<String>()).expect("it is ours");
    let service = Service::start(&["--config", file.to_str().expect("a path")]);
    (service, secrets.iter().map(|secret| secret.reveal().to_owned()).collect())
}

fn log_in(browser: &Browser, user: &str, secret: &str) {
    browser.type_into("form.login [name=user]", user);
    browser.type_into("form.login [name=secret]", secret);
    browser.click("form.login button");
}

#[test]
fn a_reader_logs_in_and_sees_and_takes_away_what_its_user_may() {
    let (service, secrets) = guarded();
    let url = format!("palisade://ops:{}@{}", secrets[0], service.resp);
    let client = blocking::connect_with(Options::new().label("worker"), &url).expect("a client");
    let _held = [client.lock("shop/1").acquire().unwrap(), client.lock("bank/1").acquire().unwrap()];

    let browser = Browser::start();
    browser.open(&service.page("locks"));
    log_in(&browser, "ops", "wrong");
    browser.until_text("form.login [role=alert]", "no such user");
    log_in(&browser, "ops", &secrets[0]);
    browser.until_text(".summary", "2 locks");
    browser.until_text("#where", "ops");
    assert_eq!(browser.run("return document.cookie"), "", "scripts cannot read the cookie");
    browser.open(&service.page("lock/bank%2F1"));
    browser.until_text(".sentence", "has held bank/1");
    assert!(browser.has(".break"));
    browser.click("#logout");
    browser.until("the form is there", "return document.querySelector('form.login')");

    log_in(&browser, "shop", &secrets[1]);
    browser.until_text("#where", "shop");
    browser.open(&service.page("locks"));
    browser.until_text(".summary", "1 lock");
    browser.until_text(".list-body", "shop/");
    let text = browser.run("return document.body.innerText");
    assert!(!text.as_str().unwrap_or_default().contains("bank"), "{text}");
    browser.open(&service.page("lock/bank%2F1"));
    browser.until_text("main", "You may not see this lock");
    browser.open(&service.page("lock/shop%2F1"));
    browser.until_text(".sentence", "has held shop/1");
    assert!(!browser.has(".break"), "this user may not take locks away");
    assert_eq!(browser.complaints(), [] as [String; 0]);
}
