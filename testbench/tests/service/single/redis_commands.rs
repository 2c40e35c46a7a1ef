//! The commands of Redis that lock libraries use, sent by a client of Redis.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::thread;

use palisade_testbench::bounded::{BOUND, block_until};
use palisade_testbench::credentials::{self, Login};
use redis::{Connection, ErrorKind, Parser, RedisError, ServerErrorKind, Value, cmd, pipe};

use super::fixture::Fixture;

const RELEASE: &str =
    "if redis.call(\"get\",KEYS[1]) == ARGV[1] then\n  return redis.call(\"del\",KEYS[1])\nelse\n  return 0\nend";
const EXTEND: &str =
    "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('pexpire', KEYS[1], ARGV[2]) else return 0 end";

fn connection(fixture: &Fixture) -> Connection {
    let client = redis::Client::open(format!("redis://{}", fixture.service.address)).expect("an address");
    client.get_connection().expect("it listens")
}

/// Sends a command of words without spaces.
fn ask(connection: &mut Connection, command: &str) -> Result<Value, RedisError> {
    let mut words = command.split(' ');
    let mut command = cmd(words.next().expect("a command"));
    for word in words {
        command.arg(word);
    }
    command.query(connection)
}

#[track_caller]
fn assert_reply(connection: &mut Connection, command: &str, expected: Value) {
    assert_eq!(ask(connection, command).expect(command), expected, "{command}");
}

fn stream(fixture: &Fixture) -> TcpStream {
    let stream = TcpStream::connect(fixture.service.address).expect("it listens");
    stream.set_read_timeout(Some(BOUND)).expect("a bound");
    stream
}

/// Returns the bytes of commands of words without spaces.
fn packed(commands: &[&str]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for command in commands {
        let words: Vec<&str> = command.split(' ').collect();
        bytes.extend(cmd(words[0]).arg(&words[1..]).get_packed_command());
    }
    bytes
}

fn run(connection: &mut Connection, script: &str, keys: &[&str], arguments: &[&str]) -> Value {
    let mut command = cmd("EVAL");
    command.arg(script).arg(keys.len()).arg(keys).arg(arguments);
    command.query(connection).expect("a known script")
}

fn text(value: &str) -> Value {
    Value::BulkString(value.as_bytes().to_vec())
}

/// Returns a number of a reply that is a map.
#[track_caller]
fn field(reply: &Value, name: &str) -> i64 {
    let Value::Array(fields) = reply else { panic!("{reply:?}") };
    let found = fields.chunks_exact(2).find(|field| field[0] == text(name));
    match found.map(|field| &field[1]) {
        Some(Value::Int(number)) => *number,
        other => panic!("{name} is {other:?}"),
    }
}

fn number(connection: &mut Connection, command: &str) -> i64 {
    match ask(connection, command).expect(command) {
        Value::Int(number) => number,
        other => panic!("{command}: {other:?}"),
    }
}

#[test]
fn a_lock_of_a_redis_client_is_a_lock_with_a_token() {
    let mut fixture = Fixture::new();
    let (mut one, mut two) = (connection(&fixture), connection(&fixture));
    assert_reply(&mut one, "SET job:1 7f3a NX PX 600000", Value::Okay);
    assert_reply(&mut two, "SET job:1 b2c4 PX 600000 NX", Value::Nil);
    assert_reply(&mut two, "GET job:1", text("7f3a"));
    assert_reply(&mut two, "EXISTS job:1 job:2", Value::Int(1));
    assert!((300_000..=600_000).contains(&number(&mut two, "PTTL job:1")));
    assert!((300..=600).contains(&number(&mut two, "ttl job:1")));
    let token = number(&mut one, "LOCK TOKEN job:1 7f3a");
    assert_reply(&mut two, "LOCK TOKEN job:1 b2c4", Value::Nil);

    // It survives a crash, and its secret is shown to none of the commands that only look.
    fixture.service.kill();
    fixture.service.restart().expect("it starts again");
    let (mut one, mut two) = (connection(&fixture), connection(&fixture));
    assert_eq!(number(&mut one, "LOCK TOKEN job:1 7f3a"), token);
    let shown = format!("{:?}{:?}", ask(&mut two, "LOCK SHOW job:1"), ask(&mut two, "LOCK LIST job"));
    assert!(shown.contains("job:1") && !shown.contains("7f3a"), "{shown}");

    // Another client's request queues behind it, and is granted when the script releases it.
    let waiter = thread::spawn({
        let mut waiter = connection(&fixture);
        move || ask(&mut waiter, "LOCK ACQUIRE job:1 TTL 600000 WAIT 600000")
    });
    block_until("it waits", || field(&ask(&mut two, "LOCK SHOW job:1").expect("it is held"), "waiter_count") == 1);
    assert_eq!(run(&mut two, RELEASE, &["job:1"], &["b2c4"]), Value::Int(0));
    assert_eq!(run(&mut one, RELEASE, &["job:1"], &["7f3a"]), Value::Int(1));
    let granted = waiter.join().expect("no panic").expect("a grant");
    assert!(field(&granted, "token") > token);

    // A lock that was not taken by a client of Redis is shown as held, and is not released by its name.
    assert_reply(&mut one, "GET job:1", text(""));
    assert_reply(&mut one, "SET job:1 7f3a NX PX 60000", Value::Nil);
    let refused = ask(&mut one, "DEL job:1").expect_err("not taken with a value");
    assert_eq!(refused.code(), Some("HELD"), "{refused}");
}

#[test]
fn the_time_of_a_lock_is_extended_by_its_value() {
    let fixture = Fixture::new();
    let mut client = connection(&fixture);
    assert_reply(&mut client, "SET a x NX EX 100", Value::Okay);
    assert_eq!(run(&mut client, EXTEND, &["a"], &["y", "900000"]), Value::Int(0));
    assert_eq!(run(&mut client, EXTEND, &["a"], &["x", "900000"]), Value::Int(1));
    assert!(number(&mut client, "PTTL a") > 800_000);
    assert_reply(&mut client, "SET a y XX PX 1000", Value::Nil);
    assert_reply(&mut client, "SET a x XX PX 200000", Value::Okay);
    assert!((100_000..=200_000).contains(&number(&mut client, "PTTL a")));
    assert_reply(&mut client, "SET a x XX KEEPTTL GET", text("x"));
    assert_reply(&mut client, "PEXPIRE a 400000", Value::Int(1));
    assert_reply(&mut client, "EXPIRE b 400", Value::Int(0));
    assert!(number(&mut client, "PTTL a") > 300_000);
    assert_reply(&mut client, "DELEX a IFEQ y", Value::Int(0));
    assert_reply(&mut client, "DELEX a IFEQ x", Value::Int(1));
    assert_reply(&mut client, "PTTL a", Value::Int(-2));
    assert_reply(&mut client, "DEL a", Value::Int(0));
}

#[test]
fn a_lock_without_a_time_lasts_until_it_is_released_or_broken() {
    let mut fixture = Fixture::new();
    let mut client = connection(&fixture);
    assert_reply(&mut client, "SET a x NX", Value::Okay);
    assert_reply(&mut client, "SET b x NX", Value::Okay);
    assert_reply(&mut client, "TTL a", Value::Int(-1));
    fixture.service.kill();
    fixture.service.restart().expect("it starts again");
    let mut client = connection(&fixture);
    assert_reply(&mut client, "PTTL a", Value::Int(-1));
    assert_reply(&mut client, "DEL a", Value::Int(1));
    assert_reply(&mut client, "GET a", Value::Nil);
    ask(&mut client, "LOCK BREAK b REASON stuck BY ops").expect("it is held");
    assert_reply(&mut client, "EXISTS a b", Value::Int(0));
    // The sessions have ended with the locks.
    let info = format!("{:?}", ask(&mut client, "INFO").expect("an answer"));
    assert!(info.contains("sessions:0"), "{info}");
    // A time ends a lock without one.
    assert_reply(&mut client, "SET c x NX", Value::Okay);
    assert_reply(&mut client, "PEXPIRE c 100", Value::Int(1));
    block_until("it expires", || ask(&mut client, "GET c").expect("an answer") == Value::Nil);
}

/// The scripts of a library are known by their words: white space, quotes and comments do not count.
#[test]
fn several_keys_are_taken_extended_and_released_together() {
    let fixture = Fixture::new();
    let mut client = connection(&fixture);
    let acquire = "-- Only if all are free.\nfor i, key in ipairs(KEYS) do\n\tif redis.call(\"exists\", key) == 1 then\n\
        \t\treturn 0\n\tend\nend\nfor i, key in ipairs(KEYS) do\n\tredis.call(\"set\", key, ARGV[1], \"PX\", ARGV[2])\nend\nreturn #KEYS\n";
    let release = "local count = 0\nfor i, key in ipairs(KEYS) do\n  if redis.call(\"get\", key) == ARGV[1] then\n\
        redis.pcall(\"del\", key)\n count = count + 1\n end\nend\nreturn count";
    let load = cmd("SCRIPT").arg("LOAD").arg(acquire).query::<String>(&mut client).expect("it is known");
    let take = |client: &mut Connection, keys: &[&str], value: &str| {
        let mut call = cmd("EVALSHA");
        call.arg(&load).arg(keys.len()).arg(keys).arg(value).arg(60_000);
        call.query::<Value>(client).expect("it was loaded")
    };
    assert_eq!(take(&mut client, &["a", "b", "c"], "x"), Value::Int(3));
    assert_eq!(take(&mut client, &["c", "d"], "y"), Value::Int(0));
    assert_reply(&mut client, "EXISTS a b c d", Value::Int(3));
    assert_eq!(number(&mut client, "LOCK TOKEN a x"), number(&mut client, "LOCK TOKEN c x"));
    // One of them alone would leave the others without an owner who can name them.
    let part = cmd("EVAL").arg(release).arg(1).arg("a").arg("x").query::<Value>(&mut client).expect_err("a part");
    assert_eq!(part.code(), Some("HELD"), "{part}");
    assert_eq!(ask(&mut client, "DEL a").expect_err("a part").code(), Some("HELD"));
    assert_eq!(run(&mut client, release, &["a", "b", "c"], &["y"]), Value::Int(0));
    assert_eq!(run(&mut client, release, &["a", "b", "c"], &["x"]), Value::Int(3));
    assert_reply(&mut client, "EXISTS a b c d", Value::Int(0));
    let unknown = cmd("EVALSHA").arg("0".repeat(40)).arg(0).query::<Value>(&mut client).expect_err("unknown");
    assert_eq!(unknown.kind(), ErrorKind::Server(ServerErrorKind::NoScript), "{unknown}");
}

#[test]
fn one_value_takes_a_lock_again_where_its_script_says_so() {
    let fixture = Fixture::new();
    let mut client = connection(&fixture);
    let obtain = "local lockClientId = redis.call('GET', KEYS[1]) if lockClientId == ARGV[1] then \
        redis.call('PEXPIRE', KEYS[1], ARGV[2]) return true elseif not lockClientId then \
        redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2]) return true end return false";
    assert_eq!(run(&mut client, obtain, &["a"], &["me", "60000"]), Value::Int(1));
    let token = number(&mut client, "LOCK TOKEN a me");
    assert_eq!(run(&mut client, obtain, &["a"], &["you", "60000"]), Value::Nil);
    assert_eq!(run(&mut client, obtain, &["a"], &["me", "900000"]), Value::Int(1));
    assert_eq!(number(&mut client, "LOCK TOKEN a me"), token);
    assert!(number(&mut client, "PTTL a") > 800_000);
}

/// A command sees what the commands before it in the same pipeline have done.
#[test]
fn a_pipeline_is_carried_out_in_order() {
    let fixture = Fixture::new();
    let mut client = connection(&fixture);
    for _ in 0..20 {
        let mut pipeline = pipe();
        pipeline.cmd("SET").arg("a").arg("x").arg("NX").arg("PX").arg(60_000).cmd("GET").arg("a").cmd("DEL").arg("a");
        pipeline
            .cmd("GET")
            .arg("a")
            .cmd("SET")
            .arg("a")
            .arg("y")
            .arg("NX")
            .cmd("TTL")
            .arg("a")
            .cmd("EXPIRE")
            .arg("a");
        pipeline.arg(50).cmd("EVAL").arg(RELEASE).arg(1).arg("a").arg("y").cmd("EXISTS").arg("a");
        let replies: Vec<Value> = pipeline.query(&mut client).expect("all are carried out");
        let released = [Value::Okay, text("x"), Value::Int(1), Value::Nil];
        let again = [Value::Okay, Value::Int(-1), Value::Int(1), Value::Int(1), Value::Int(0)];
        assert_eq!(replies, [released.as_slice(), again.as_slice()].concat());
    }
}

#[test]
fn everything_that_does_not_lock_is_refused_and_changes_nothing() {
    let fixture = Fixture::new();
    let mut client = connection(&fixture);
    let refused = [
        "SET a x",
        "SET a x PX 1000",
        "SET a x NX GET",
        "SET a x NX PX 0",
        "SET a x NX PX -1",
        "SET a x NX PX 1000 EX 1",
        "SET a x NX XX",
        "SET a x XX",
        "SET a x IFEQ y PX 1000",
        "SET a x NX PX 99999999999999999999",
        "SET $a x NX PX 1000",
        "DEL a b",
        "LPUSH a x",
        "HSET a b c",
        "FLUSHALL",
        "SELECT 1",
        "EVAL return 0",
        "EVAL return 1 a",
        "EXPIRE a -1",
    ];
    for command in refused {
        let error = ask(&mut client, command).expect_err(command);
        assert!(matches!(error.code(), Some("BADARG" | "LIMIT")), "{command}: {error}");
    }
    let unknown = cmd("EVAL").arg("return redis.call('flushall')").arg(0).query::<Value>(&mut client);
    assert!(unknown.expect_err("unknown").to_string().contains("this is a lock service"));
    assert_reply(&mut client, "EXISTS a", Value::Int(0));
    assert_reply(&mut client, "SELECT 0", Value::Okay);
}

/// Users of the same prefix cannot read, extend or release each other's locks.
#[test]
fn a_value_is_the_secret_of_its_user() {
    let folder = tempfile::tempdir().expect("a folder");
    let (ann, bob) = (Login::new("ann", "acquire", "jobs/"), Login::new("bob", "acquire", "jobs/"));
    let eve = Login::new("eve", "observe", "jobs/");
    let (name, value) = credentials::users(&[&ann, &bob, &eve]);
    let fixture = Fixture::with_variables(folder, &[(name, value.as_str())]);
    let of = |login: &Login| {
        let url = format!("redis://{}:{}@{}", login.name(), login.secret(), fixture.service.address);
        redis::Client::open(url).expect("an address").get_connection().expect("it listens")
    };
    let (mut ann, mut bob, mut eve) = (of(&ann), of(&bob), of(&eve));
    for name in ["EVAL", "SCRIPT"] {
        let mut command = cmd(name);
        if name == "SCRIPT" {
            command.arg("LOAD").arg(RELEASE)
        } else {
            command.arg(RELEASE).arg(1).arg("jobs/1").arg("x")
        };
        let denied = command.query::<Value>(&mut eve).expect_err("she may take nothing");
        assert!(denied.code() == Some("DENIED") && denied.to_string().contains("scripts"), "{denied}");
    }
    assert_reply(&mut ann, "SET jobs/1 7f3a NX PX 60000", Value::Okay);
    assert_reply(&mut ann, "GET jobs/1", text("7f3a"));
    assert_reply(&mut bob, "GET jobs/1", text(""));
    assert_reply(&mut bob, "LOCK TOKEN jobs/1 7f3b", Value::Nil);
    assert_reply(&mut bob, "DEL jobs/1", Value::Int(0));
    assert_reply(&mut bob, "PEXPIRE jobs/1 1000", Value::Int(0));
    // A client that knows the value can use it.
    assert_eq!(number(&mut bob, "LOCK TOKEN jobs/1 7f3a"), number(&mut ann, "LOCK TOKEN jobs/1 7f3a"));
    for command in ["SET other/1 x NX PX 1000", "GET other/1", "DEL other/1"] {
        let error = ask(&mut bob, command).expect_err(command);
        assert_eq!(error.code(), Some("DENIED"), "{command}: {error}");
    }
    assert_eq!(run(&mut bob, RELEASE, &["jobs/1"], &["guess"]), Value::Int(0));
    assert_reply(&mut ann, "DEL jobs/1", Value::Int(1));
}

/// Replies come in order, and only a command that waits in a queue holds up those behind it.
#[test]
fn a_command_behind_an_acquire_that_waits_is_carried_out_after_it() {
    let fixture = Fixture::new();
    let mut one = connection(&fixture);
    assert_reply(&mut one, "SET a x NX PX 600000", Value::Okay);
    let mut two = stream(&fixture);
    let wanted = ["LOCK ACQUIRE b TTL 600000 WAIT 600000", "LOCK ACQUIRE a TTL 600000 WAIT 600000", "SET c x NX"];
    two.write_all(&packed(&wanted)).expect("it listens");
    let mut replies = Parser::new();
    let mut next = || replies.parse_value(&mut two).expect("a reply");
    assert_eq!(field(&next(), "token"), 2, "b is free, and its reply does not wait for a's");
    block_until("it waits", || field(&ask(&mut one, "LOCK SHOW a").expect("it is held"), "waiter_count") == 1);
    assert_reply(&mut one, "EXISTS b c", Value::Int(1));
    assert_reply(&mut one, "DELEX a IFEQ x", Value::Int(1));
    assert_eq!(field(&next(), "token"), 3, "a was handed over");
    assert_eq!(next(), Value::Okay);
    assert_reply(&mut one, "EXISTS a b c", Value::Int(3));
    // The lock is free when the commands arrive, and one of them takes it.
    two.write_all(&packed(&["SET d x NX", "LOCK ACQUIRE d TTL 600000 WAIT 600000", "SET e x NX"]))
        .expect("it listens");
    block_until("it waits", || {
        ask(&mut one, "LOCK SHOW d").is_ok_and(|lock| lock != Value::Nil && field(&lock, "waiter_count") == 1)
    });
    assert_reply(&mut one, "EXISTS e", Value::Int(0));
}

/// A library that waits for its turn subscribes to the channel on which the release is announced.
#[test]
fn a_script_announces_its_release() {
    let fixture = Fixture::new();
    let (mut one, mut two) = (connection(&fixture), connection(&fixture));
    let release = "local lockClientId = redis.call('GET', KEYS[1]) \
        if (lockClientId == ARGV[1] and redis.call('UNLINK', KEYS[1]) == 1) then \
        redis.call('PUBLISH', ARGV[2], KEYS[1]) return true end return false";
    let mut listener = two.as_pubsub();
    listener.set_read_timeout(Some(BOUND)).expect("a bound");
    listener.psubscribe("locks-channel:*").expect("it is confirmed");
    listener.subscribe("locks-channel").expect("it is confirmed");
    for (lock, channel) in [("locks:a", "locks-channel:locks:a"), ("locks:b", "locks-channel")] {
        assert_reply(&mut one, &format!("SET {lock} me NX PX 60000"), Value::Okay);
        assert_eq!(run(&mut one, release, &[lock], &["you", "locks-channel"]), Value::Nil, "not announced");
        assert_eq!(run(&mut one, release, &[lock], &["me", channel]), Value::Int(1));
        let message = listener.get_message().expect("it is announced");
        assert_eq!(
            (message.get_channel_name(), message.get_payload::<String>().expect("a text")),
            (channel, lock.to_owned())
        );
    }
    drop(listener);
    assert_reply(&mut two, "EXISTS locks:a", Value::Int(0));
}

/// Commands behind a wait that is given up are not carried out: the client would take their replies for those of others.
#[test]
fn nothing_is_carried_out_behind_a_wait_that_was_given_up() {
    let fixture = Fixture::new();
    let mut one = connection(&fixture);
    assert_reply(&mut one, "SET a x NX PX 600000", Value::Okay);
    let wait = "LOCK ACQUIRE a TTL 600000 WAIT 600000";

    // More came behind it than the service keeps.
    let mut two = stream(&fixture);
    two.write_all(&packed(&[wait])).expect("it listens");
    block_until("it waits", || field(&ask(&mut one, "LOCK SHOW a").expect("it is held"), "waiter_count") == 1);
    let commands: Vec<String> = (0..80).map(|number| format!("SET k{number} {} NX", "v".repeat(4000))).collect();
    two.write_all(&packed(&commands.iter().map(String::as_str).collect::<Vec<_>>())).expect("it listens");
    let mut replies = Vec::new();
    two.read_to_end(&mut replies).expect("it is closed");
    let replies = String::from_utf8(replies).expect("text");
    assert!(replies.starts_with("$-1\r\n-LIMIT more than ") && replies.lines().count() == 2, "{replies}");
    assert_reply(&mut one, "EXISTS k0 k1", Value::Int(0));

    // The client closes its side.
    let mut two = stream(&fixture);
    two.write_all(&packed(&[wait, "SET b x NX", "DEL a"])).expect("it listens");
    block_until("it waits", || field(&ask(&mut one, "LOCK SHOW a").expect("it is held"), "waiter_count") == 1);
    two.shutdown(Shutdown::Write).expect("it is open");
    let mut replies = Vec::new();
    two.read_to_end(&mut replies).expect("it is closed");
    assert_eq!(String::from_utf8(replies).expect("text"), "$-1\r\n");
    assert_reply(&mut one, "EXISTS a b", Value::Int(1));
}

/// A client that was paused until its lock expired does not delete the lock of a client on another host.
#[test]
fn a_lock_is_deleted_by_its_name_only_from_the_host_that_took_it() {
    let fixture = Fixture::new();
    let mut one = connection(&fixture);
    assert_reply(&mut one, "SET a x NX PX 60000", Value::Okay);
    let mut elsewhere = palisade_testbench::bounded::check(BOUND, async {
        let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
        socket.bind(([127, 0, 0, 2], 0).into()).expect("an address of this machine");
        socket.connect(fixture.service.address).await.expect("it listens").into_std().expect("a socket")
    });
    elsewhere.set_nonblocking(false).expect("a socket");
    let commands = packed(&["DEL a", "PEXPIRE a 100", "UNLINK a", "DELEX a IFEQ x"]);
    elsewhere.write_all(&commands).expect("it listens");
    let mut replies = Parser::new();
    for expected in [0, 0, 0, 1] {
        assert_eq!(replies.parse_value(&mut elsewhere).expect("a reply"), Value::Int(expected));
    }
}

#[test]
fn odd_times_scripts_and_versions_are_harmless() {
    let fixture = Fixture::new();
    let mut client = connection(&fixture);
    // A time below the shortest one counts as the shortest.
    assert_reply(&mut client, "SET a x NX PX 1", Value::Okay);
    block_until("it expires", || ask(&mut client, "GET a").expect("an answer") == Value::Nil);
    assert_reply(&mut client, "SET a x NX", Value::Okay);
    // The script of redis-py extends no lock without a time.
    let extend = "local token = redis.call('get', KEYS[1]) if not token or token ~= ARGV[1] then return 0 end
        local expiration = redis.call('pttl', KEYS[1]) if not expiration then expiration = 0 end
        if expiration < 0 then return 0 end
        local newttl = ARGV[2] if ARGV[3] == \"0\" then newttl = ARGV[2] + expiration end
        redis.call('pexpire', KEYS[1], newttl) return 1";
    for replaces in ["0", "1"] {
        assert_eq!(run(&mut client, extend, &["a"], &["x", "1000", replaces]), Value::Int(0));
    }
    // All of this is a comment.
    let comment = format!("--[[ \n{RELEASE}\n --]]");
    assert!(cmd("EVAL").arg(comment).arg(1).arg("a").arg("x").query::<Value>(&mut client).is_err());
    assert_reply(&mut client, "EXISTS a", Value::Int(1));
    // A reply has the form that was agreed on when its command was sent.
    let mut two = stream(&fixture);
    two.write_all(&packed(&["LOCK ACQUIRE a TTL 1000", "HELLO 3", "QUIT"])).expect("it listens");
    let mut replies = Vec::new();
    two.read_to_end(&mut replies).expect("it is closed");
    assert!(replies.starts_with(b"$-1\r\n%"), "{}", String::from_utf8_lossy(&replies));
}

/// A client sends a transaction whole, and relies on all of it or nothing being carried out.
#[test]
fn nothing_of_a_transaction_is_carried_out() {
    let fixture = Fixture::new();
    let mut client = connection(&fixture);
    for end in ["EXEC", "DISCARD"] {
        let mut two = stream(&fixture);
        two.write_all(&packed(&["MULTI", "SET a x NX", end, "SET b x NX", "DEL b", "QUIT"])).expect("it listens");
        let mut replies = String::new();
        two.read_to_string(&mut replies).expect("it is closed");
        let codes: Vec<&str> = replies.lines().map(|line| line.split(' ').next().unwrap_or_default()).collect();
        assert_eq!(codes, ["-BADARG", "-BADARG", "-EXECABORT", "+OK", ":1", "+OK"], "{replies}");
        assert_reply(&mut client, "EXISTS a", Value::Int(0));
    }
    assert_reply(&mut client, "COMMAND DOCS", Value::Array(Vec::new()));
}
