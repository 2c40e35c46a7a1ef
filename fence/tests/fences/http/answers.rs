//! The fence's answer to each kind of request.

use http::{Method, Request};
use palisade_fence::http::{FENCING_TOKEN, Limits, MemoryMarks, Scope};

use super::fixture::{Behavior, Fixture};

fn fixture() -> Fixture {
    Fixture::new(Scope::one("orders").expect("a name"), MemoryMarks::default(), Limits::default())
}

#[tokio::test]
async fn a_request_without_a_token_reaches_nothing() {
    let fixture = fixture();
    for method in [Method::GET, Method::HEAD, Method::POST, Method::PUT, Method::DELETE, Method::TRACE] {
        let reply = fixture.send(method.clone(), "/orders", "", "x").await;
        assert_eq!((reply.status.as_u16(), reply.verdict.as_str()), (428, "missing"), "{method}");
    }
    let reply = fixture.send(Method::CONNECT, "/orders", "34; seq=1", "x").await;
    assert_eq!((reply.status.as_u16(), reply.verdict.as_str()), (400, "malformed"), "{}", reply.body);
    assert_eq!((fixture.written(), *fixture.backend.arrived.borrow()), (vec![], 0));
}

#[tokio::test]
async fn an_invalid_header_is_refused() {
    let fixture = fixture();
    fixture.seal(34).await;
    let bad = [
        (Method::PUT, "x"),
        (Method::PUT, "34"),
        (Method::PUT, "34; seq=0"),
        (Method::GET, "34; seq=1"),
        (Method::PUT, "34; seal"),
        (Method::GET, "34; seal"),
        (Method::PUT, "34; seq=1; settle"),
        (Method::PUT, "34; seq=1; lock=\"other\""),
    ];
    for (method, header) in bad {
        let reply = fixture.send(method, "/orders", header, "x").await;
        assert_eq!((reply.status.as_u16(), reply.verdict.as_str()), (400, "malformed"), "{header}: {}", reply.body);
    }
    let twice = Request::put("/orders").header(FENCING_TOKEN, "34; seq=1").header(FENCING_TOKEN, "34; seq=1");
    assert_eq!(fixture.pass(twice.body(String::new()).expect("a request")).await.verdict, "malformed");
    assert!(fixture.written().is_empty());
    assert_eq!(fixture.send(Method::PUT, "/orders", "34; seq=1; lock=\"orders\"", "x").await.verdict, "admitted");
}

#[tokio::test]
async fn refusals_are_problems_that_say_what_to_do() {
    let fixture = fixture();
    fixture.seal(36).await;
    let stale = fixture.write(34, 1, "x").await;
    assert_eq!((stale.status.as_u16(), stale.verdict.as_str()), (412, "stale; seen=36"));
    assert_eq!(stale.headers["content-type"], "application/problem+json");
    insta::assert_snapshot!(stale.body, @r#"{"type":"urn:palisade:problem:stale","title":"A newer token has sealed it","status":412,"code":"STALE","detail":"token 34 on 'orders': token 36 has sealed it","what_to_do":"Either a newer holder has the lock: stop the work and acquire it again. Or the engine that gave this token counts lower than the one that gave token 36 (a new file, another engine): run `palisade tokens raise --above 36` on it.","seen":36}"#);
    assert_eq!(fixture.seal(34).await.verdict, "superseded; seen=36");
    let not_sealed = fixture.write(37, 1, "x").await;
    assert_eq!((not_sealed.status.as_u16(), not_sealed.verdict.as_str()), (409, "not-sealed"));
    let gap = fixture.write(36, 2, "x").await;
    assert_eq!((gap.status.as_u16(), gap.verdict.as_str()), (409, "gap; expected=1"));
    assert!(fixture.written().is_empty());
}

#[tokio::test]
async fn a_repeat_gets_the_first_answer_without_cookies() {
    let fixture = fixture();
    assert_eq!(fixture.seal(34).await.body, r#"{"token":34,"seq":0}"#);
    let first = fixture.write(34, 1, "one").await;
    assert_eq!((first.verdict.as_str(), first.body.as_str()), ("admitted", "one"));
    assert_eq!(first.headers["set-cookie"], "secret");
    let again = fixture.write(34, 1, "one").await;
    assert_eq!((again.verdict.as_str(), again.status, again.body), ("repeated", first.status, first.body));
    assert_eq!(again.headers["content-type"], "text/plain");
    assert!(!again.headers.contains_key("set-cookie"));
    assert_eq!(fixture.settle(34, 1).await.verdict, "repeated");
    assert_eq!(fixture.written(), ["one"]);
}

#[tokio::test]
async fn a_failure_that_the_service_answers_is_an_answer() {
    let fixture = fixture();
    fixture.seal(34).await;
    assert_eq!(fixture.write(34, 1, "bad").await.status, 422);
    let again = fixture.write(34, 1, "bad").await;
    assert_eq!((again.status.as_u16(), again.verdict.as_str()), (422, "repeated"));
    assert_eq!(fixture.write(34, 2, "good").await.status, 200);
}

#[tokio::test]
async fn a_number_that_was_settled_is_used_up() {
    let fixture = fixture();
    fixture.seal(34).await;
    let settled = fixture.settle(34, 1).await;
    assert_eq!((settled.status.as_u16(), settled.verdict.as_str()), (204, "nothing"));
    assert_eq!(fixture.write(34, 1, "late").await.verdict, "nothing");
    assert_eq!(fixture.write(34, 2, "next").await.verdict, "admitted");
    assert_eq!(fixture.written(), ["next"]);
}

#[tokio::test]
async fn long_answers_are_passed_on_but_not_kept() {
    let limits = Limits { answer_bytes: 10, ..Limits::default() };
    let fixture = Fixture::new(Scope::one("orders").expect("a name"), MemoryMarks::default(), limits);
    fixture.seal(34).await;
    for (seq, length, verdict) in
        [(1, 10, "repeated"), (2, 11, "repeated; body=?0"), (3, 100_000, "repeated; body=?0")]
    {
        let body = format!("long {length}");
        assert_eq!(fixture.write(34, seq, &body).await.body.len(), length);
        let again = fixture.write(34, seq, &body).await;
        assert_eq!((again.verdict.as_str(), again.status.as_u16()), (verdict, 200));
        assert_eq!(again.body.len(), if length > 10 { 0 } else { length });
    }
    assert_eq!(fixture.written().len(), 3);
}

#[tokio::test]
async fn long_writes_are_refused() {
    let limits = Limits { request_bytes: 10, ..Limits::default() };
    let fixture = Fixture::new(Scope::one("orders").expect("a name"), MemoryMarks::default(), limits);
    fixture.seal(34).await;
    assert_eq!(fixture.write(34, 1, "0123456789x").await.status, 413);
    assert_eq!(fixture.write(34, 1, "0123456789").await.status, 200);
}

#[tokio::test]
async fn reads_have_the_services_own_answer() {
    let fixture = fixture();
    fixture.seal(34).await;
    fixture.write(34, 1, "one").await;
    let reply = fixture.read(34).await;
    assert_eq!((reply.verdict.as_str(), reply.body.as_str()), ("admitted", "one"));
    fixture.behavior(Behavior::Fails);
    assert_eq!((fixture.read(34).await.status.as_u16(), fixture.read(34).await.verdict), (502, "failed".to_owned()));
    fixture.behavior(Behavior::Answers);
    assert_eq!(fixture.write(34, 2, "two").await.verdict, "admitted", "a read that fails makes no outcome unknown");
}

#[tokio::test]
async fn unfenced_requests_pass() {
    let scope = Scope::by(|_| palisade_core::LockName::new("orders").expect("a name"));
    let scope = scope.except(|parts| parts.uri.path() == "/healthz");
    let fixture = Fixture::new(scope, MemoryMarks::default(), Limits::default());
    let reply = fixture.send(Method::GET, "/healthz", "", "").await;
    assert_eq!((reply.status.as_u16(), reply.verdict.as_str()), (200, ""), "the service cannot speak for the fence");
    assert_eq!(fixture.send(Method::GET, "/orders", "", "").await.status, 428);
    assert_eq!(fixture.send(Method::OPTIONS, "/orders", "", "").await.status, 200);
}

#[tokio::test]
async fn each_lock_can_have_its_own_mark() {
    let fixture = Fixture::new(Scope::per_lock(), MemoryMarks::default(), Limits::default());
    assert_eq!(fixture.send(Method::POST, "/", "34; seal", "").await.verdict, "malformed", "it must be named");
    assert_eq!(fixture.send(Method::GET, "/", "", "").await.verdict, "missing");
    assert_eq!(fixture.send(Method::POST, "/", "34; seal; lock=\"a\"", "").await.verdict, "sealed; token=34; seq=0");
    assert_eq!(fixture.send(Method::GET, "/", "34; lock=\"b\"", "").await.verdict, "not-sealed");
    assert_eq!(fixture.send(Method::POST, "/", "33; seal; lock=\"b\"", "").await.verdict, "sealed; token=33; seq=0");
    let umlaut = "1; seal; lock=%\"b%c3%bccher\"";
    assert_eq!(fixture.send(Method::POST, "/", umlaut, "").await.verdict, "sealed; token=1; seq=0");
}
