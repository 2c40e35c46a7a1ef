//! Objects: in the reference store, and in a real one.

use std::net::SocketAddr;
use std::sync::{Arc, LazyLock, mpsc};
use std::thread;

use bytes::Bytes;
use object_store::ObjectStore;
use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;
use palisade_fence::object_store::{Bucket, Object};
use palisade_fence::{Error, ErrorKind};
use palisade_testbench::fencing::{Subject, survive};
use palisade_testbench::servers::S3;

#[derive(Clone)]
pub(crate) struct Objects(pub(crate) Arc<dyn ObjectStore>);

impl Subject for Objects {
    type Resource = Object;

    async fn open(&self, name: &str) -> Result<Object, Error> {
        Bucket::open(self.0.clone()).await?.object(name)
    }

    fn get(&self) {}

    fn set(&self, number: u64) -> Bytes {
        number.to_string().into()
    }

    fn number(&self, answer: Bytes) -> u64 {
        let text = String::from_utf8(answer.to_vec()).expect("a number");
        if text.is_empty() { 0 } else { text.parse().expect("a number") }
    }

    fn bad_names(&self) -> Vec<String> {
        ["", "/", "a//b", "a/../b", "a\nb"].map(str::to_owned).into()
    }
}

fn in_memory() -> Objects {
    static STORE: LazyLock<Arc<InMemory>> = LazyLock::new(Arc::default);
    Objects(STORE.clone())
}

pub(crate) fn in_s3() -> Objects {
    Objects(S3::client(&address().to_string()).expect("a store"))
}

/// One for all tests; it ends with the thread that has started it, and that with the process.
pub(crate) fn address() -> SocketAddr {
    static SERVER: LazyLock<SocketAddr> = LazyLock::new(|| {
        let (sender, started) = mpsc::channel();
        thread::spawn(move || {
            let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
            let server = S3::start(directory.path()).unwrap_or_else(|absent| panic!("{absent}"));
            sender.send(server.address).expect("somebody waits");
            loop {
                thread::park();
            }
        });
        started.recv().expect("it starts")
    });
    *SERVER
}

palisade_testbench::fencing!(object_in_memory, in_memory());
palisade_testbench::fencing!(object_in_s3, in_s3());

#[tokio::test]
async fn a_store_without_conditions_is_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let files = LocalFileSystem::new_with_prefix(directory.path()).expect("a store");
    let error = Bucket::open(Arc::new(files)).await.expect_err("it has no conditional update");
    assert!(matches!(error.kind(), ErrorKind::Misuse { .. }), "{error}");
    assert_eq!(std::fs::read_dir(directory.path()).expect("it is there").count(), 0, "the probe is gone");
}

#[test]
fn a_store_that_is_killed_at_any_moment_keeps_its_word() {
    let place = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let mut server = S3::start(place.path()).unwrap_or_else(|absent| panic!("{absent}"));
    let store = Objects(S3::client(&server.address.to_string()).expect("a store"));
    let mut dice = palisade_testbench::faulty_disk::Dice::new(7);
    survive(&store, super::kills(5), || {
        // The moment of a kill is the matter.
        thread::sleep(std::time::Duration::from_micros(dice.roll(500_000) as u64));
        server.kill();
        server.restart().expect("it reads its files");
    });
}
