//! `docs/GUARANTEES.md` says what every engine declares, as it declares it when it runs.
//!
//! `PALISADE_WRITE=yes cargo test -p palisade-testbench --all-features --test engines guarantees` writes the page.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use palisade::Options;
use palisade::engine::{Guarantees, Level, Offers, Order, SessionClock, WakeUp};
use palisade_testbench::bounded::{BOUND, check};
use palisade_testbench::servers;
use tempfile::TempDir;

const TOP: &str = "\
# What every engine promises

<!-- Written by `PALISADE_WRITE=yes cargo test -p palisade-testbench --all-features --test engines guarantees`, from engines that run. -->

What an engine does not declare is refused when it is asked for, and the refusal is tested on every engine.
`palisade doctor --url URL` says the same of yours, and which of its settings break it; in Rust, `palisade.guarantees()`.

";

const WORDS: &str = "
- **fenced**: tokens only rise, over crashes and restarts, as long as the store keeps its acknowledged writes.
  **healthy-only**: they rise while the store keeps its data; a failover can take them back, so a correctness lock is
  refused unless `dangerous_accept_failover()` is called. **advisory**: there are no tokens, and none could exist; it is for
  efficiency only.
- **fair**: first come, first served, over all processes. **race**: the client that asks at the right moment.
- **the host's** clock and **the engine's own** are monotonic. **The store's** is the wall clock of its server: a jump of
  it ends a session too early or too late, but no grant and no token depends on it.
- **pushed**: the engine notifies a waiter of its grant. **polled**: the waiter asks repeatedly.

| engine | shared | permits | resize | several at once | elections | delay | force-release | list | watch | leave | signed tokens |
|---|---|---|---|---|---|---|---|---|---|---|---|
";

/// How an engine is reached, and what it declared.
struct Row {
    url: &'static str,
    declared: Guarantees,
}

async fn ask(rows: &mut Vec<Row>, shown: &'static str, url: &str) {
    let palisade = Options::new().connect(url).await.unwrap_or_else(|error| panic!("{shown}: {error}"));
    rows.push(Row { url: shown, declared: palisade.guarantees().clone() });
}

fn present<S>(started: Result<S, servers::Absent>) -> S {
    started.unwrap_or_else(|absent| panic!("{absent}"))
}

fn inside(folder: &Path, name: &str) -> PathBuf {
    let inside = folder.join(name);
    fs::create_dir(&inside).expect("a folder");
    inside
}

async fn declared(folder: &Path) -> Vec<Row> {
    let mut rows = Vec::new();
    let signing = [("SERVE_SIGN", "yes")];
    let service = present(servers::Service::start_with(env!("CARGO_BIN_EXE_serve"), folder, &signing));
    ask(&mut rows, "palisade://…", &service.url()).await;
    ask(&mut rows, "embedded:", &format!("embedded://{}", folder.join("locks.db").display())).await;
    let postgres = present(servers::Postgres::start(&inside(folder, "postgres")));
    ask(&mut rows, "postgres://…", &postgres.url()).await;
    let pooler = present(servers::PgBouncer::start(&inside(folder, "pgbouncer"), postgres.address, 4));
    ask(&mut rows, "postgres://…, through a transaction-mode pooler", &pooler.url()).await;
    let etcd = present(servers::Etcd::start(&inside(folder, "etcd")));
    ask(&mut rows, "etcd://…", &format!("etcd://{}", etcd.address)).await;
    let consul = present(servers::Consul::start(&inside(folder, "consul")));
    ask(&mut rows, "consul://…", &format!("consul://{}", consul.address)).await;
    let mariadb = present(servers::MariaDb::start(&inside(folder, "mariadb")));
    ask(&mut rows, "mysql://…", &mariadb.url()).await;
    let zookeeper = present(servers::ZooKeeper::start(&inside(folder, "zookeeper")));
    ask(&mut rows, "zookeeper://…", &format!("zookeeper://{}", zookeeper.address)).await;
    let redis = present(servers::Redis::start(&inside(folder, "redis"), "always"));
    ask(&mut rows, "redis://…", &redis.url()).await;
    ask(&mut rows, "postgres://…?mode=advisory", &format!("{}?mode=advisory", postgres.url())).await;
    let nodes = (0..5).map(|node| present(servers::Redis::start(&inside(folder, &format!("node-{node}")), "no")));
    let nodes: Vec<_> = nodes.collect();
    let addresses: Vec<_> = nodes.iter().map(|node| node.address.to_string()).collect();
    ask(&mut rows, "redlock://a,b,c,d,e", &format!("redlock://{}", addresses.join(","))).await;
    ask(&mut rows, "memory:", "memory:").await;
    rows
}

fn page(rows: &[Row]) -> String {
    let mut page = TOP.to_owned();
    page.push_str("| engine | tokens | order | whose clock ends a session | waiters are |\n|---|---|---|---|---|\n");
    for Row { url, declared } in rows {
        let order = match declared.order {
            Order::Fair => "fair",
            Order::Race => "race",
        };
        let clock = match declared.session_clock {
            SessionClock::SameHost => "the host's",
            SessionClock::Engine => "the engine's own",
            SessionClock::Store => "the store's",
        };
        let wake_up = match declared.wake_up {
            WakeUp::Pushed => "pushed",
            WakeUp::Polled => "polled",
        };
        writeln!(page, "| `{url}` | {} | {order} | {clock} | {wake_up} |", declared.level).expect("it is a string");
    }
    page.push_str(WORDS);
    for Row { url, declared } in rows {
        let Offers { shared, permits, resize, several, values, delay, force_release, list, watch, detach, signed } =
            declared.offers;
        write!(page, "| `{url}` |").expect("it is a string");
        for offered in [shared, permits, resize, several, values, delay, force_release, list, watch, detach, signed] {
            page.push_str(if offered { " yes |" } else { " – |" });
        }
        page.push('\n');
    }
    page
}

#[test]
fn the_page_says_what_engines_declare() {
    check(BOUND, async {
        let folder = TempDir::new().expect("a folder");
        let rows = declared(folder.path()).await;
        assert!(rows.iter().any(|row| row.declared.level == Level::Fenced));
        let (page, path) = (page(&rows), Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/GUARANTEES.md"));
        if std::env::var_os("PALISADE_WRITE").is_some() {
            fs::write(&path, &page).expect("the page can be written");
        }
        let written = fs::read_to_string(&path).expect("the page is there");
        assert!(written == page, "docs/GUARANTEES.md is not what the engines declare: PALISADE_WRITE=yes writes it");
    });
}
