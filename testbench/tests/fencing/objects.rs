//! Objects: in the reference store.

use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use object_store::ObjectStore;
use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;
use palisade_fence::object_store::{Bucket, Object};
use palisade_fence::{Error, ErrorKind};
use palisade_testbench::fencing::Subject;

#[derive(Clone)]
struct Objects(Arc<dyn ObjectStore>);

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

palisade_testbench::fencing!(object_in_memory, in_memory());

#[tokio::test]
async fn a_store_without_conditions_is_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let files = LocalFileSystem::new_with_prefix(directory.path()).expect("a store");
    let error = Bucket::open(Arc::new(files)).await.expect_err("it has no conditional update");
    assert!(matches!(error.kind(), ErrorKind::Misuse { .. }), "{error}");
    assert_eq!(std::fs::read_dir(directory.path()).expect("it is there").count(), 0, "the probe is gone");
}
