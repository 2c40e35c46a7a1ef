//! The same locks from `redis-cli`.

use palisade::engine::redis::functions;

use super::fixture::{Fixture, LONG_TTL, check, take, token, try_take};

const KEY: &str = "palisade:{palisade}:locks";

fn load(fixture: &Fixture) {
    assert_eq!(fixture.redis.cli(&["FUNCTION", "LOAD", "REPLACE", &functions()]), "palisade_locks");
}

#[test]
fn redis_cli_and_the_library_exclude_each_other_and_share_the_tokens() {
    check(async {
        let fixture = Fixture::new();
        load(&fixture);
        let call =
            |function: &str, args: &[&str]| fixture.redis.cli(&[&["FCALL", function, "1", KEY], args].concat());
        let alice = fixture.client(LONG_TTL).await;
        let held = take(&alice, "orders/42").await;
        let before = token(&held).get();
        assert_eq!(call("palisade_acquire", &["orders/42", "30000"]), "");
        let shown = call("palisade_show", &["orders/42"]);
        assert!(shown.contains("direct") && shown.contains(&token(&held).to_string()), "{shown}");
        held.release().await.expect("it is held");

        let taken = call("palisade_acquire", &["orders/42", "30000", "by hand"]);
        let (number, session) = taken.split_once('\n').expect("a token and a session");
        assert!(number.parse::<u64>().expect("a token") > before);
        assert!(try_take(&alice, "orders/42").await.is_none());
        let lock = alice.inspect("orders/42").await.expect("an answer").expect("it is held");
        assert_eq!(lock.holders[0].label.as_deref(), Some("by hand"));
        assert_eq!(call("palisade_renew", &[session]), "1");
        assert_eq!(call("palisade_release", &["orders/42", "1", session]), "0");
        assert!(try_take(&alice, "orders/42").await.is_none());
        assert_eq!(call("palisade_release", &["orders/42", number, session]), "1");
        assert_eq!(call("palisade_release", &["orders/42", number, session]), "0");
        assert_eq!(call("palisade_renew", &[session]), "0");
        assert!(try_take(&alice, "orders/42").await.is_some());
        assert_eq!(call("palisade_show", &["orders/42"]), "");
    });
}

#[test]
fn invalid_arguments_are_refused_with_what_to_do() {
    let fixture = Fixture::new();
    load(&fixture);
    for (function, args, why) in [
        ("palisade_acquire", vec!["1", KEY, "", "30000"], "a name has"),
        ("palisade_acquire", vec!["1", KEY, "$mine", "30000"], "a name has"),
        ("palisade_acquire", vec!["1", KEY, "a\nb", "30000"], "a name has"),
        ("palisade_acquire", vec!["1", KEY, "a\u{85}b", "30000"], "a name has"),
        ("palisade_acquire", vec!["1", KEY, "a\u{2028}b", "30000"], "a name has"),
        ("palisade_acquire", vec!["1", KEY, "a\u{202e}b", "30000"], "a name has"),
        ("palisade_acquire", vec!["1", KEY, "a\u{200f}b", "30000"], "a name has"),
        ("palisade_acquire", vec!["1", KEY, "a\u{2066}b", "30000"], "a name has"),
        ("palisade_acquire", vec!["1", KEY, "a\u{61c}b", "30000"], "a name has"),
        ("palisade_acquire", vec!["1", KEY, "a"], "too few"),
        ("palisade_acquire", vec!["1", KEY, "a", "soon"], "the TTL is"),
        ("palisade_acquire", vec!["1", KEY, "a", "1"], "the TTL is"),
        ("palisade_acquire", vec!["0", "a", "30000"], "one key is needed"),
        ("palisade_acquire", vec!["1", "palisade:{shop}", "a", "30000"], "one key is needed"),
        ("palisade_acquire", vec!["1", "orders", "a", "30000"], "one key is needed"),
        ("palisade_renew", vec!["1", "palisade:{}:locks", "1"], "one key is needed"),
        ("palisade_show", vec!["1", "palisade:{a}:locks:due", "a"], "one key is needed"),
        ("palisade_check", vec!["1", "x:palisade:{a}:locks"], "one key is needed"),
        ("palisade_release", vec!["1", KEY, "a", "no", "1"], "the token is"),
        ("palisade_release", vec!["1", KEY, "a"], "too few"),
    ] {
        let reply = fixture.redis.cli(&[&["FCALL", function], &args[..]].concat());
        assert!(reply.contains(why), "{function} {args:?}: {reply}");
    }
    assert_eq!(fixture.redis.cli(&["DBSIZE"]), "0");
}
