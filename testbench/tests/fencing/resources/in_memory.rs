//! The fence in memory, which is the reference.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use palisade_fence::memory::Memory;
use palisade_fence::{Error, ErrorKind};
use palisade_testbench::fencing::Subject;

#[derive(Clone, Default)]
struct Memories(Arc<Mutex<BTreeMap<String, Memory>>>);

impl Subject for Memories {
    type Resource = Memory;

    async fn open(&self, name: &str) -> Result<Memory, Error> {
        if name.is_empty() {
            return Err(Error::new(ErrorKind::misuse("it has no name"), name, "open"));
        }
        let mut memories = self.0.lock().expect("not poisoned");
        Ok(memories.entry(name.to_owned()).or_insert_with(|| Memory::new(name)).clone())
    }

    fn get(&self) {}

    fn set(&self, number: u64) -> Vec<u8> {
        number.to_string().into_bytes()
    }

    fn number(&self, answer: Vec<u8>) -> u64 {
        let text = String::from_utf8(answer).expect("a number");
        if text.is_empty() { 0 } else { text.parse().expect("a number") }
    }

    fn bad_names(&self) -> Vec<String> {
        vec![String::new()]
    }

    fn impossible(&self) -> Vec<Vec<u8>> {
        Vec::new()
    }
}

palisade_testbench::fencing!(memory, Memories::default());
