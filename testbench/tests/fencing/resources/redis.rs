//! The fence in a real Redis.

use std::sync::Arc;

use palisade_fence::redis::{Command, Keys, Redis, Value};
use palisade_fence::{Error, ErrorKind, Sealed, Token};
use palisade_testbench::faulty_disk::Rng;
use palisade_testbench::fencing::{Subject, survive};
use palisade_testbench::servers::{self, Shared};
use tempfile::TempDir;

use super::check;

static SERVER: Shared<servers::Redis> = Shared::new(|directory| servers::Redis::start(directory, "always"));

#[derive(Clone)]
struct Numbers(Arc<(servers::Redis, TempDir)>);

impl Numbers {
    fn new() -> Numbers {
        Numbers(SERVER.get().expect("a Redis"))
    }
}

impl Subject for Numbers {
    type Resource = Keys;

    async fn open(&self, name: &str) -> Result<Keys, Error> {
        Redis::install(&self.0.0.url()).await?.keys(name)
    }

    fn get(&self) -> Command {
        Command::new("GET")
    }

    fn set(&self, number: u64) -> Command {
        // The outcome is the value before.
        Command::new("SET").arg(number).arg("GET")
    }

    fn number(&self, answer: Value) -> u64 {
        number(&answer)
    }

    fn bad_names(&self) -> Vec<String> {
        ["", "{orders}", "a}b", "a\nb", "\0"].map(str::to_owned).into_iter().chain(["x".repeat(256)]).collect()
    }

    fn impossible(&self) -> Vec<Command> {
        vec![Command::new("LPUSH").arg(7)]
    }
}

palisade_testbench::fencing!(redis, Numbers::new());

fn number(answer: &Value) -> u64 {
    match answer {
        Value::Nil => 0,
        Value::BulkString(text) => str::from_utf8(text).expect("a number").parse().expect("a number"),
        other => panic!("no number: {other:?}"),
    }
}

/// Returns the resource of this name.
async fn keys(server: &servers::Redis, name: &str) -> Keys {
    Redis::install(&server.url()).await.expect("it is there").keys(name).expect("a good name")
}

fn token(number: u64) -> Token {
    Token::new(number).expect("a token")
}

/// Runs `redis-cli`, and returns its output, errors included.
fn redis_cli(server: &servers::Redis, words: &str) -> String {
    let mut cli = std::process::Command::new("redis-cli");
    cli.args(["--no-raw", "-p", &server.address.port().to_string()]).args(words.split(' '));
    let output = palisade_testbench::bounded::output(&mut cli).expect("redis-cli is installed");
    String::from_utf8(output.stdout).expect("text").trim_end().to_owned()
}

#[test]
fn common_commands_return_their_results() {
    check(async {
        let Numbers(server) = Numbers::new();
        let orders = keys(&server.0, "usual").await;
        let mut orders = Sealed::seal(orders, token(1)).await.expect("it is new");
        assert_eq!(orders.get("usual").await.expect("read"), None);
        orders.set("usual", "41").await.expect("set");
        assert_eq!(orders.incr("usual", 1).await.expect("raised"), 42);
        assert_eq!(orders.get("usual").await.expect("read"), Some(b"42".to_vec()));
        assert!(orders.hset("{usual}:lines", "a", b"\0\xff".as_slice()).await.expect("set"));
        assert!(!orders.hset("{usual}:lines", "a", 2).await.expect("set"));
        assert_eq!(orders.hget("{usual}:lines", "a").await.expect("read"), Some(b"2".to_vec()));
        assert!(orders.del("usual").await.expect("deleted"));
        assert!(!orders.del("usual").await.expect("deleted"));
        let pushed = orders.write(Command::new("RPUSH").key("{usual}:list").arg("a").arg("b")).await;
        assert_eq!(pushed.expect("pushed"), Value::Int(2));
    });
}

#[test]
fn a_rejected_change_changes_nothing_and_leaves_the_handle_usable() {
    check(async {
        let Numbers(server) = Numbers::new();
        let mut orders = Sealed::seal(keys(&server.0, "rejected").await, token(1)).await.expect("it is new");
        orders.set("rejected", "text").await.expect("set");
        let error = orders.incr("rejected", 1).await.expect_err("it is no number");
        assert!(matches!(error.kind(), ErrorKind::Rejected { .. }), "{error}");
        for name in ["SELECT", "flushall", "FLUSHDB", "NOSUCHCOMMAND", ""] {
            orders.write(Command::new(name)).await.expect_err("it is refused");
        }
        let error = orders.read(Command::new("SET").arg("1")).await.expect_err("it is no read");
        assert!(matches!(error.kind(), ErrorKind::Misuse { .. }), "{error}");
        orders.write(Command::new("DEL").key("palisade:{rejected}")).await.expect_err("the mark is not for commands");
        assert_eq!(orders.get("rejected").await.expect("read"), Some(b"text".to_vec()));
        orders.set("rejected", "more").await.expect("the handle goes on");
    });
}

#[test]
fn a_lost_mark_is_never_silently_created_again() {
    check(async {
        let Numbers(server) = Numbers::new();
        let orders = keys(&server.0, "evicted").await;
        let mut paused = Sealed::seal(orders.clone(), token(34)).await.expect("it is new");
        paused.set("evicted", "1").await.expect("set");
        assert_eq!(redis_cli(&server.0, "DEL palisade:{evicted}"), "(integer) 1");
        let error = paused.set("evicted", "2").await.expect_err("there is no mark");
        assert!(matches!(error.kind(), ErrorKind::NotSealed), "{error}");
        let error = Sealed::seal(orders.clone(), token(33)).await.expect_err("there are data without a mark");
        assert!(matches!(error.kind(), ErrorKind::Misuse { .. }), "{error}");
        assert_eq!(redis_cli(&server.0, "GET evicted"), "\"1\"");
        orders.adopt(token(40)).await.expect("an operator has checked the data");
        assert!(Sealed::seal(orders, token(39)).await.is_err());
    });
}

#[test]
fn any_client_is_fenced_by_the_same_calls() {
    let Numbers(server) = Numbers::new();
    let call = |words: &str| redis_cli(&server.0, &format!("FCALL {words}"));
    check(keys(&server.0, "plain"));
    let mark = "palisade:{plain}";
    assert!(call(&format!("palisade_write 2 {mark} plain 33 1 0 SET 5")).starts_with("(error) NOTSEALED"));
    assert_eq!(call(&format!("palisade_seal 2 {mark} plain 33")), "(integer) 0");
    assert_eq!(call(&format!("palisade_write 2 {mark} plain 33 1 0 SET 5")), "OK");
    assert_eq!(call(&format!("palisade_write 2 {mark} plain 33 2 0 INCR")), "(integer) 6");
    assert_eq!(call(&format!("palisade_write 2 {mark} plain 33 2 0 INCR")), "(integer) 6", "it was a repeat");
    assert_eq!(call(&format!("palisade_read 2 {mark} plain 33 GET")), "\"6\"");
    assert_eq!(call(&format!("palisade_seal 2 {mark} plain 33")), "(integer) 2", "the numbers go on");
    assert!(call(&format!("palisade_write 2 {mark} plain 33 2 9 INCR")).starts_with("(error) GAP 3 "));
    assert_eq!(call(&format!("palisade_settle 1 {mark} 33 3 0")), "(empty array)");
    assert!(call(&format!("palisade_write 2 {mark} plain 33 3 0 INCR")).starts_with("(error) SETTLED"));
    assert_eq!(call(&format!("palisade_seal 2 {mark} plain 34")), "(integer) 0");
    assert_eq!(
        call(&format!("palisade_write 2 {mark} plain 33 4 0 INCR")),
        "(error) STALE 34 is the token that has sealed it. Either a newer holder has the lock: acquire it again. Or the \
         engine that gave this token counts lower: palisade tokens raise --above 34"
    );
    assert!(call(&format!("palisade_read 2 {mark} plain 33 GET")).starts_with("(error) STALE 34 "));
    assert!(call(&format!("palisade_seal 1 {mark} 33")).starts_with("(error) SUPERSEDED 34 "));
    assert_eq!(call(&format!("palisade_mark 1 {mark}")), "1) (integer) 34\n2) (integer) 0");
    assert_eq!(redis_cli(&server.0, "GET plain"), "\"6\"");
}

#[test]
fn invalid_calls_are_refused_and_change_nothing() {
    let Numbers(server) = Numbers::new();
    check(keys(&server.0, "senseless"));
    let mark = "palisade:{senseless}";
    assert_eq!(redis_cli(&server.0, &format!("FCALL palisade_seal 1 {mark} 5")), "(integer) 0");
    for call in [
        "palisade_seal 0 6",
        "palisade_seal 1 MARK",
        "palisade_seal 1 MARK 0",
        "palisade_seal 1 MARK -1",
        "palisade_seal 1 MARK 6.5",
        "palisade_seal 1 MARK 1e9",
        "palisade_seal 1 MARK six",
        "palisade_seal 1 MARK 9007199254740992",
        "palisade_seal 1 MARK 99999999999999999999",
        "palisade_write 2 MARK senseless 5",
        "palisade_write 2 MARK senseless 5 1",
        "palisade_write 2 MARK senseless 5 1 0",
        "palisade_write 2 MARK senseless 5 one 0 SET 1",
        "palisade_write 2 MARK senseless 5 1 -3 SET 1",
        "palisade_write 1 MARK 5 1 0 SET 1",
        "palisade_write 2 MARK MARK 5 1 0 DEL",
        "palisade_write 2 MARK senseless 5 1 0 HSET only",
        "palisade_write 2 MARK 1 5 1 0 SELECT",
        "palisade_read 2 MARK senseless 5",
        "palisade_read 2 MARK senseless 5 DEL",
        "palisade_settle 1 MARK 5",
        "palisade_settle 1 MARK 5 7 0",
    ] {
        let answer = redis_cli(&server.0, &format!("FCALL {}", call.replace("MARK", mark)));
        assert!(answer.starts_with("(error) "), "{call}: {answer}");
    }
    assert_eq!(redis_cli(&server.0, &format!("FCALL palisade_mark 1 {mark}")), "1) (integer) 5\n2) (integer) 0");
    assert_eq!(redis_cli(&server.0, "EXISTS senseless"), "(integer) 0");
}

#[test]
fn no_command_reaches_a_mark() {
    let Numbers(server) = Numbers::new();
    check(keys(&server.0, "reached"));
    let call = |words: &str| redis_cli(&server.0, &format!("FCALL {}", words.replace("MARK", "palisade:{reached}")));
    assert_eq!(call("palisade_seal 1 MARK 33"), "(integer) 0");
    assert_eq!(call("palisade_write 2 MARK reached 33 1 0 SET 24-bytes-that-look-like-a-mark"), "OK");
    assert_eq!(call("palisade_seal 1 palisade:{reached-too} 90"), "(integer) 0");
    redis_cli(&server.0, "HSET palisade:{palisade}:locks field value");
    for write in [
        // The mark as an argument, where the command takes it for a key.
        "2 MARK reached 33 2 0 RENAME MARK",
        "2 MARK reached 33 2 0 RENAMENX MARK",
        "2 MARK reached 33 2 0 COPY MARK REPLACE",
        "2 MARK reached 33 2 0 DEL MARK",
        "2 MARK reached 33 2 0 UNLINK MARK",
        "2 MARK reached 33 2 0 MSET 1 MARK 2",
        "2 MARK reached 33 2 0 SORT STORE MARK",
        "2 MARK reached 33 2 0 SUNIONSTORE MARK",
        "2 MARK reached 33 2 0 ZUNIONSTORE 1 MARK",
        "2 MARK reached 33 2 0 LMOVE MARK LEFT LEFT",
        "2 MARK reached 33 2 0 GEORADIUS 0 0 1 m STORE MARK",
        "2 MARK MARK 33 2 0 GET",
        // As one of its keys, also in another spelling.
        "3 MARK reached MARK 33 2 0 RENAME",
        "3 MARK MARK reached 33 2 0 rename",
        "3 MARK reached MARK 33 2 0 Copy REPLACE",
        "2 MARK MARK 33 2 0 PEXPIRE 1",
        "2 MARK MARK 33 2 0 RESTORE 0 x",
        // Commands whose keys are elsewhere, or that have none.
        "2 MARK MOVE 33 2 0 BITOP MARK reached",
        "2 MARK reached 33 2 0 MOVE 1",
        "2 MARK 0 33 2 0 SWAPDB 1",
        "2 MARK reached 33 2 0 SWAPDB",
        "2 MARK 127.0.0.1 33 2 0 MIGRATE 1 MARK 0 1",
        "2 MARK return 33 2 0 EVAL 0",
        "2 MARK palisade_seal 33 2 0 FCALL 1 MARK 99",
        "2 MARK reached 33 2 0 FLUSHALL",
        "2 MARK ASYNC 33 2 0 FLUSHDB",
        "2 MARK reached 33 2 0 SELECT",
        "2 MARK maxmemory 33 2 0 CONFIG",
        "2 MARK CREATE 33 2 0 XGROUP MARK g $",
        // Another mark, and a key of the engine.
        "2 MARK palisade:{reached-too} 33 2 0 DEL",
        "3 MARK reached palisade:{reached-too} 33 2 0 RENAME",
        "2 MARK palisade:{palisade}:locks 33 2 0 DEL",
    ] {
        let reply = call(&format!("palisade_write {write}"));
        assert!(reply.starts_with("(error) MISUSE"), "{write}: {reply}");
    }
    for read in
        ["2 MARK reached 33 MGET MARK", "2 MARK reached 33 SORT", "2 MARK MARK 33 GET", "2 MARK reached 33 DUMP"]
    {
        assert!(call(&format!("palisade_read {read}")).starts_with("(error) MISUSE"), "{read}");
    }
    // A key with data is not taken for a mark, nor overwritten by one.
    for other in ["reached", "palisade:reached", "palisade:{}", "palisade:{a}b", "palisade:{palisade}:locks"] {
        for words in [
            "palisade_seal 1 KEY 99",
            "palisade_mark 1 KEY",
            "palisade_settle 1 KEY 33 2 0",
            "palisade_read 2 KEY x 33 GET",
        ] {
            let reply = call(&words.replace("KEY", other));
            assert!(reply.starts_with("(error) MISUSE"), "{words} {other}: {reply}");
        }
    }
    assert_eq!(call("palisade_mark 1 MARK"), "1) (integer) 33\n2) (integer) 1");
    assert_eq!(call("palisade_mark 1 palisade:{reached-too}"), "1) (integer) 90\n2) (integer) 0");
    assert_eq!(call("palisade_write 3 MARK reached {reached}:new 33 2 0 RENAME"), "OK");
    assert_eq!(call("palisade_write 3 MARK {reached}:new {reached}:copy 33 3 0 COPY"), "(integer) 1");
    assert_eq!(call("palisade_write 3 MARK {reached}:new {reached}:copy 33 4 0 DEL"), "(integer) 2");
}

#[test]
fn a_server_that_cannot_be_fenced_is_refused() {
    check(async {
        let place = tempfile::tempdir().expect("a directory");
        let server =
            servers::Redis::start_with(place.path(), &["--maxmemory-policy", "allkeys-lru"]).expect("a Redis");
        let error = Redis::install(&server.url()).await.err().expect("it evicts marks");
        assert!(error.to_string().contains("noeviction"), "{error}");
        redis_cli(&server, "CONFIG SET maxmemory-policy volatile-lru");
        let error = Redis::connect(&server.url()).await.err().expect("there are no functions");
        assert!(error.to_string().contains("palisade fence redis --install"), "{error}");
        assert!(!error.may_have_taken_effect() && !error.is_retryable());

        let mut orders = Sealed::seal(keys(&server, "orders").await, token(1)).await.expect("it is new");
        redis_cli(&server, "FUNCTION FLUSH");
        let error = orders.set("orders", 1).await.expect_err("the functions are gone");
        assert!(!error.may_have_taken_effect(), "{error}");
        assert!(orders.is_settled());

        let url = format!("redis://user:secret@{}", server.address);
        let error = Redis::connect(&url).await.err().expect("there is no such user");
        assert!(!error.is_retryable() && !error.to_string().contains("secret"), "{error}");
        for url in ["", "http://secret", "redis://", "redis://:secret@ /"] {
            let error = Redis::connect(url).await.err().expect("it is no URL");
            assert!(!error.to_string().contains("secret"), "{error}");
        }
    });
}

#[test]
fn a_user_without_access_to_the_mark_writes_nothing() {
    check(async {
        let Numbers(server) = Numbers::new();
        let mut admin = Sealed::seal(keys(&server.0, "half").await, token(1)).await.expect("it is new");
        admin.set("half", "1").await.expect("set");
        redis_cli(&server.0, "ACL SETUSER half on >secret ~* +fcall +info +get +append");
        let url = server.0.url().replace("//", "//half:secret@");
        let keys = Redis::connect(&url).await.expect("it may").keys("half").expect("a good name");
        let mut user = Sealed::seal(keys, token(1)).await.expect("it is sealed already");
        let append = Command::new("APPEND").key("half").arg("2");
        let error = user.write(append).await.expect_err("it may not");
        assert!(!error.may_have_taken_effect() && !error.is_retryable(), "{error}");
        assert_eq!(admin.get("half").await.expect("read"), Some(b"1".to_vec()));
    });
}

#[test]
#[ignore = "long: several seconds"]
fn a_replica_refuses_reads_and_seals() {
    check(async {
        let place = tempfile::tempdir().expect("a directory");
        let primary = servers::Redis::start_with(&place.path().join("primary"), &[]).expect("a Redis");
        let mut orders = Sealed::seal(keys(&primary, "orders").await, token(1)).await.expect("it is new");
        orders.set("orders", 1).await.expect("set");
        let of = primary.address.port().to_string();
        let options = ["--replicaof", "127.0.0.1", &of];
        let replica = servers::Redis::start_with(&place.path().join("replica"), &options).expect("a Redis");
        // Without a limit.
        redis_cli(&primary, "WAIT 1 0");
        for call in ["palisade_read 2 palisade:{orders} orders 1 GET", "palisade_seal 1 palisade:{orders} 2"] {
            let answer = redis_cli(&replica, &format!("FCALL {call}"));
            assert!(answer.starts_with("(error) READONLY"), "{call}: {answer}");
        }
    });
}

#[test]
fn in_a_cluster_the_keys_are_found_and_must_be_together() {
    check(async {
        let place = tempfile::tempdir().expect("a directory");
        let cluster = servers::RedisCluster::start(place.path()).unwrap_or_else(|absent| panic!("{absent}"));
        for node in &cluster.nodes {
            Redis::install(&node.url()).await.expect("it is there");
        }
        let redis = Redis::connect(&cluster.nodes[0].url()).await.expect("it is there");
        for name in ["a", "b", "c", "d"] {
            let mut handle = Sealed::seal(redis.keys(name).expect("a name"), token(1)).await.expect("it is new");
            handle.set(name, name).await.expect("its own name is in its slot");
            handle.set(format!("{{{name}}}:more"), name).await.expect("so is what has it in braces");
            assert_eq!(handle.get(name).await.expect("read"), Some(name.as_bytes().to_vec()));
            let error = handle.set("elsewhere", name).await.expect_err("it is in another slot");
            assert!(matches!(error.kind(), ErrorKind::Misuse { .. }), "{error}");
        }
    });
}

/// Like [`Numbers`], at a server that is restarted.
#[derive(Clone)]
struct Anywhere(String);

impl Subject for Anywhere {
    type Resource = Keys;

    async fn open(&self, name: &str) -> Result<Keys, Error> {
        Redis::connect(&self.0).await?.keys(name)
    }

    fn get(&self) -> Command {
        Command::new("GET")
    }

    fn set(&self, number: u64) -> Command {
        Command::new("SET").arg(number)
    }

    fn number(&self, answer: Value) -> u64 {
        number(&answer)
    }

    fn bad_names(&self) -> Vec<String> {
        Vec::new()
    }

    fn impossible(&self) -> Vec<Command> {
        Vec::new()
    }
}

#[test]
fn a_server_that_is_killed_at_any_moment_loses_no_acknowledged_write() {
    let place = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let mut server = servers::Redis::start(place.path(), "always").expect("a Redis");
    let mut rng = Rng::new(7);
    check(keys(&server, "any"));
    survive(&Anywhere(server.url()), super::kills(15), || {
        // The random moment of the kill is what is tested.
        std::thread::sleep(std::time::Duration::from_micros(rng.below(150_000) as u64));
        server.kill();
        server.restart().expect("it reads its files");
    });
}
