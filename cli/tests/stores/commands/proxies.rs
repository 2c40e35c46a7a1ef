//! Several proxies in front of one service, whose marks are in one PostgreSQL.

use palisade_fence::http::Api;
use palisade_fence::{Seal, Token};

use crate::common::http_client;
use crate::common::process::Process;
use crate::sandbox::Sandbox;
use crate::servers::Server;

struct Proxy {
    _process: Process,
    api: Api,
}

impl Proxy {
    fn start(sandbox: &Sandbox, store: &str, service: &str) -> Proxy {
        let mut command = sandbox.command(&["fence", "http", "--upstream", service, "--listen", "127.0.0.1:0"]);
        command.args(["--store", store, "--lock", "orders", "--shut-for", "0s"]);
        let (process, _, at) = super::start_proxy(command);
        Proxy { _process: process, api: Api::new(http_client(), &format!("http://{at}")).unwrap() }
    }
}

#[tokio::test]
async fn a_seal_is_shared_by_all_proxies_and_survives_kill_9() {
    let (sandbox, server) = (Sandbox::new(), Server::postgres(&[]));
    let service = super::service().await;
    let (one, other) = (Proxy::start(&sandbox, &server.url, &service), Proxy::start(&sandbox, &server.url, &service));
    let token = |number| Token::new(number).unwrap();
    let mut paused = one.api.seal(token(33)).await.unwrap();
    paused.put("/orders", "rope").await.unwrap();
    assert_eq!(other.api.mark("").await.unwrap().unwrap().seq.get(), 1);
    let mut newer = other.api.seal(token(34)).await.unwrap();
    assert_eq!(paused.put("/orders", "iron").await.unwrap_err().overtaken_by(), Some(token(34)));
    drop(other);
    assert_eq!(one.api.seal(token(33)).await.unwrap_err().superseded_by, Some(token(34)));
    let third = Proxy::start(&sandbox, &server.url, &service);
    assert!(newer.put("/orders", "iron").await.is_err(), "its proxy is gone");
    let mut again = third.api.seal(token(35)).await.unwrap();
    again.put("/orders", "iron").await.unwrap();
    let output = sandbox.run(&["fence", "check", &server.url, "orders"]);
    assert!(
        output.err.contains("palisade fence postgres --install"),
        "the marks of HTTP proxies are not those of the PostgreSQL fence: {output:?}"
    );
}
