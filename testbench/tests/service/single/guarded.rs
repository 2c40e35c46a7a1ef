//! Encrypted connections, and clients with a login. They reconnect as others do, and authenticate each time.

use std::fs;
use std::net::SocketAddr;
use std::time::Duration;

use futures_util::FutureExt;
use palisade::{Error, ErrorKind, Options, Palisade};
use palisade_testbench::credentials::{self, Credentials, Login};
use palisade_testbench::proxy::Towards;

use super::fixture::{
    Fixture, LONG_TTL, SHORT_TTL, check, holder, is_not_kept_alive, jeopardy, take, taken, taking, token, until,
    until_idle, until_queued, until_some, within,
};

/// A service with TLS, client certificates and one user.
pub(crate) struct Guarded {
    pub(crate) fixture: Fixture,
    pub(crate) credentials: Credentials,
    pub(crate) login: Login,
}

impl Guarded {
    pub(crate) fn new() -> Guarded {
        let folder = tempfile::tempdir().expect("a folder");
        let (credentials, login) = (Credentials::new(folder.path()), Login::new("ci", "admin", ""));
        credentials.demand_certificates();
        let variables = [credentials.tls(), credentials::users(&[&login])];
        let fixture =
            Fixture::with_variables(folder, &variables.each_ref().map(|(name, value)| (*name, value.as_str())));
        let guarded = Guarded { fixture, credentials, login };
        guarded.keep_secret(guarded.login.secret());
        guarded
    }

    /// Writes the secret to the file that clients read.
    fn keep_secret(&self, secret: &str) {
        fs::write(self.fixture.folder().join("secret"), format!("{secret}\nnot this\n")).expect("the folder is ours");
    }

    fn url(&self, address: SocketAddr) -> String {
        let folder = self.fixture.folder();
        format!("palisades://ci@{address}?secret_file={}/secret&{}", folder.display(), credentials::options(folder))
    }

    async fn client(&self, ttl: Duration) -> Palisade {
        let url = self.url(self.fixture.service.address);
        Options::new().label("direct").ttl(ttl).connect(&url).await.expect("a client")
    }

    async fn through_proxy(&self, ttl: Duration) -> Palisade {
        let url = self.url(self.fixture.proxy.address);
        Options::new().label("through the proxy").ttl(ttl).connect(&url).await.expect("a client")
    }

    /// Ends the service, and starts it with this user.
    fn restart_with(&mut self, login: &Login) {
        let variables = [self.credentials.tls(), credentials::users(&[login])];
        let variables = variables.each_ref().map(|(name, value)| (*name, value.as_str()));
        self.fixture.service.restart_with(&variables).expect("it starts again");
    }
}

#[test]
fn grants_and_waits_survive_a_restart_over_encrypted_connections() {
    check(async {
        let mut guarded = Guarded::new();
        let (alice, bob) = (guarded.client(LONG_TTL).await, guarded.client(LONG_TTL).await);
        let guard = take(&alice, "lock").await;
        let (first, session) = (token(&guard), holder(&alice, "lock").await);
        let waiting = taking(&bob, "lock");
        until_queued(&alice, "lock", 1).await;
        for _ in 0..3 {
            guarded.fixture.service.kill();
            guarded.fixture.service.restart().expect("it starts again");
            until_queued(&alice, "lock", 1).await;
            assert_eq!((token(&guard), holder(&alice, "lock").await), (first, session));
        }
        assert_eq!(guard.lost().now_or_never(), None);
        guard.release().await.expect("it is held");
        let guard = taken(waiting).await;
        assert!(token(&guard) > first);
        guard.release().await.expect("it is held");
        until_idle(&alice, "lock").await;
    });
}

/// Also in the middle of a record, and of a handshake.
#[test]
#[ignore = "long: connections cut at any byte"]
fn an_encrypted_connection_that_is_cut_anywhere_loses_nothing() {
    check(async {
        let guarded = Guarded::new();
        let (alice, bob) = (guarded.through_proxy(LONG_TTL).await, guarded.client(LONG_TTL).await);
        let guard = take(&alice, "kept").await;
        let (first, session) = (token(&guard), holder(&bob, "kept").await);
        for towards in [Towards::Server, Towards::Client] {
            for at in (0..4000).step_by(97) {
                let name = format!("{towards:?}/{at}");
                let held = take(&bob, &name).await;
                let waiting = taking(&alice, &name);
                until_queued(&bob, &name, 1).await;
                // After the first cut the client reconnects, and the second cut hits that handshake.
                guarded.fixture.proxy.cut();
                guarded.fixture.proxy.cut_after(towards, at);
                held.release().await.expect("it is held");
                drop(taken(waiting).await);
                until_idle(&bob, &name).await;
            }
        }
        guarded.fixture.proxy.pass();
        assert_eq!((token(&guard), holder(&alice, "kept").await), (first, session));
        assert_eq!(guard.lost().now_or_never(), None);
    });
}

/// More than fits into a socket's buffer, or into one TLS record.
#[test]
fn large_requests_and_replies_pass_an_encrypted_connection() {
    check(async {
        let guarded = Guarded::new();
        let alice = guarded.through_proxy(LONG_TTL).await;
        guarded.fixture.proxy.hold(Towards::Server);
        let before = guarded.fixture.proxy.passed(Towards::Server);
        let padding = "x".repeat(400);
        let taking: Vec<_> = (0..3000).map(|lock| taking(&alice, &format!("{padding}/{lock}"))).collect();
        tokio::task::yield_now().await;
        guarded.fixture.proxy.pass();
        let mut guards = Vec::new();
        for task in taking {
            guards.push(taken(task).await);
        }
        assert!(guarded.fixture.proxy.passed(Towards::Server) - before > 3000 * 400);
        assert_eq!(alice.list("").await.expect("a list").len(), guards.len());
    });
}

/// The keeper retries, because the secret file may be corrected later.
#[test]
fn a_client_with_an_old_secret_gets_an_error_and_reconnects_with_the_new_one() {
    check(async {
        let mut guarded = Guarded::new();
        let alice = guarded.client(LONG_TTL).await;
        let guard = take(&alice, "lock").await;
        let before = (token(&guard), holder(&alice, "lock").await);
        let changed = Login::new("ci", "admin", "");
        guarded.restart_with(&changed);
        let error = refusal(&alice).await;
        assert!(matches!(error.kind(), ErrorKind::Denied { .. }), "{error:?}");
        assert!(error.to_string().contains("it has no user 'ci' with this secret"), "{error}");
        assert!(!error.may_have_taken_effect() && !format!("{error:?}").contains(guarded.login.secret()));
        guarded.keep_secret(changed.secret());
        until("the client has a connection again", async || alice.inspect("lock").await.is_ok()).await;
        assert_eq!((token(&guard), holder(&alice, "lock").await), before, "it was kept all the time");
        guard.release().await.expect("it is held");
    });
}

/// Waits for the refusal of a client. Before it, the old connection may break.
async fn refusal(client: &Palisade) -> Error {
    until_some("the client is refused", async || match client.inspect("lock").await {
        Err(error) if error.is_retryable() => None,
        other => Some(other.expect_err("its credentials are the old ones")),
    })
    .await
}

#[test]
fn a_client_that_is_refused_again_learns_of_its_loss_in_time() {
    check(async {
        let mut guarded = Guarded::new();
        let alice = guarded.client(SHORT_TTL).await;
        let guard = take(&alice, "lock").await;
        guarded.restart_with(&Login::new("ci", "admin", ""));
        let safe_until = jeopardy(&guard).await;
        assert!(is_not_kept_alive(&guard.lost().await) && safe_until.has_passed());
    });
}

#[test]
fn a_client_with_a_rejected_certificate_reconnects_with_the_next_one() {
    check(async {
        let mut guarded = Guarded::new();
        let alice = guarded.client(LONG_TTL).await;
        let guard = take(&alice, "lock").await;
        let before = token(&guard);
        let folder = guarded.fixture.folder().to_owned();
        let next = credentials::Authority::new("next");
        next.publish(&folder, "clients.pem");
        guarded.fixture.service.restart().expect("it starts again");
        let error = refusal(&alice).await;
        assert!(error.to_string().contains("it does not accept this client's certificate"), "{error}");
        next.issue(&folder, "client", &["client"], |_| {});
        until("the client has a connection again", async || alice.inspect("lock").await.is_ok()).await;
        assert_eq!(token(&guard), before);
    });
}

#[test]
fn rights_that_were_taken_away_end_a_watch_and_refuse_what_waits() {
    check(async {
        let mut guarded = Guarded::new();
        let (alice, bob) = (guarded.client(LONG_TTL).await, guarded.client(LONG_TTL).await);
        let mut watch = alice.watch("other/").await.expect("a watch");
        let (guard, waiting) = (take(&alice, "mine/lock").await, taking(&bob, "mine/lock"));
        until_queued(&alice, "mine/lock", 1).await;
        let held = take(&alice, "other/lock").await;
        let refused = taking(&bob, "other/lock");
        until_queued(&alice, "other/lock", 1).await;
        guarded.restart_with(&guarded.login.allowed("acquire", "mine/"));
        let error = refused.await.expect("no panic").expect_err("it has no right any more");
        assert!(matches!(error.kind(), ErrorKind::Denied { .. }), "{error}");
        within("the watch ends", async { while watch.next().await.is_some() {} }).await;
        guard.release().await.expect("it is held");
        drop(taken(waiting).await);
        let error = held.release().await.expect_err("it has no right any more");
        assert!(matches!(error.kind(), ErrorKind::Denied { .. }), "{error}");
        // With the right, the pending release is made, and no waiter is left.
        guarded.restart_with(&guarded.login.clone());
        until_idle(&alice, "other/lock").await;
    });
}
