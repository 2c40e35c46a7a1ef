//! `palisade fence http` with its marks in SQLite.

use std::path::Path;

use reqwest::Method;
use rustix::process::Signal;

use super::trace::{Flushes, Tracing};
use crate::fence_http::proxy::Proxy;
use crate::fence_http::upstream::Upstream;
use crate::sandbox::Sandbox;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn marks_are_flushed_before_a_write_is_forwarded_and_before_it_is_answered() {
    let (sandbox, upstream) = (Sandbox::new(), Upstream::start());
    let command = Proxy::command(&sandbox, &upstream.url(), &[]);
    let output = sandbox.path().join("trace");
    let Some((command, tracing)) = Tracing::of(&command, output, 5000, Flushes::Quick) else { return };
    let proxy = Proxy::spawn(command);
    let pid = proxy.pid();
    let sealed = proxy.send(Method::POST, "/", "34; seal", "").await;
    assert!(sealed.status().is_success(), "{sealed:?}");
    for seq in 1..4 {
        let header = format!("34; seq={seq}");
        let written = proxy.send(Method::POST, "/log", &header, &format!("entry-{seq}")).await;
        assert_eq!(written.status(), 201, "{written:?}");
    }
    proxy.signal(Signal::TERM);
    assert_eq!(proxy.end(), Some(0));
    let trace = tracing.end(pid);
    let must_survive =
        |path: &Path| ["marks.db", "marks.db-wal"].map(|name| sandbox.path().join(name)).contains(&path.to_owned());
    let to_upstream = format!("->{}]", upstream.address);
    let is_for_upstream =
        |target: &Option<String>| target.as_ref().is_some_and(|target| target.ends_with(&to_upstream));
    let answers: Vec<_> = trace.sent("HTTP/1.1 ").filter(|call| call.has("HTTP/1.1 2")).collect();
    assert_eq!(answers.len(), 4, "{answers:#?}");
    trace.assert_durable_at(answers[0], "orders", must_survive);
    let forwarded: Vec<_> = trace.sent("POST /log").filter(|call| is_for_upstream(&call.target)).collect();
    assert_eq!(forwarded.len(), 3, "{forwarded:#?}");
    for (forwarded, answered) in forwarded.iter().zip(&answers[1..]) {
        trace.assert_durable_at(forwarded, "begun", must_survive);
        trace.assert_durable_at(answered, "answered", must_survive);
        // The reply has a separate write to the marks, after the request was forwarded.
        let between = trace.calls.iter().filter(|call| {
            let is_marks = call.target.as_ref().is_some_and(|target| must_survive(Path::new(target)));
            call.is_write() && is_marks && call.entry > forwarded.entry && call.entry < answered.entry
        });
        assert!(between.clone().any(|call| call.has("answered")), "the answer is kept before it is sent");
    }
}
