//! Redis, a real one.

use std::sync::Arc;

use palisade_fence::redis::{Command, Keys, Redis, Value};
use palisade_fence::{Error, ErrorKind, Sealed, Token};
use palisade_testbench::fencing::Subject;
use palisade_testbench::servers::{self, Shared};
use tempfile::TempDir;

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
        // With the value before as its outcome.
        Command::new("SET").arg(number).arg("GET")
    }

    fn number(&self, answer: Value) -> u64 {
        match answer {
            Value::Nil => 0,
            Value::BulkString(text) => str::from_utf8(&text).expect("a number").parse().expect("a number"),
            other => panic!("no number: {other:?}"),
        }
    }

    fn bad_names(&self) -> Vec<String> {
        ["", "{orders}", "a}b", "a\nb", "\0"].map(str::to_owned).into_iter().chain(["x".repeat(256)]).collect()
    }
}

palisade_testbench::fencing!(redis, Numbers::new());
