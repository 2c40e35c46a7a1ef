//! Objects: in the reference store, and in a real one.

use std::net::SocketAddr;
use std::sync::{Arc, LazyLock, mpsc};
use std::thread;

use bytes::Bytes;
use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;
use object_store::{ObjectStore, ObjectStoreExt, PutPayload};
use palisade_fence::object_store::{Bucket, Object};
use palisade_fence::{Error, ErrorKind, Sealed, Token};
use palisade_testbench::bounded::BOUND;
use palisade_testbench::fencing::{Subject, survive};
use palisade_testbench::servers::{Faults, Loss, S3};

use super::check;

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

    fn impossible(&self) -> Vec<Bytes> {
        Vec::new()
    }
}

fn in_memory() -> Objects {
    static STORE: LazyLock<Arc<InMemory>> = LazyLock::new(Arc::default);
    Objects(STORE.clone())
}

pub(crate) fn in_s3() -> Objects {
    Objects(S3::client(&address().to_string()).expect("a store"))
}

/// Returns the address of one server for all tests. It ends with this process.
pub(crate) fn address() -> SocketAddr {
    static SERVER: LazyLock<SocketAddr> = LazyLock::new(|| {
        let (sender, started) = mpsc::channel();
        thread::spawn(move || {
            let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
            let server = S3::start(directory.path()).unwrap_or_else(|absent| panic!("{absent}"));
            sender.send(server.address).expect("the test waits");
            loop {
                thread::park();
            }
        });
        started.recv_timeout(BOUND).expect("it starts in time")
    });
    *SERVER
}

palisade_testbench::fencing!(object_in_memory, in_memory());
palisade_testbench::fencing!(object_in_s3, in_s3());

#[test]
fn a_store_without_conditions_is_refused() {
    check(async {
        let directory = tempfile::tempdir().expect("a directory");
        let files = LocalFileSystem::new_with_prefix(directory.path()).expect("a store");
        let error = Bucket::open(Arc::new(files)).await.expect_err("it has no conditional update");
        assert!(matches!(error.kind(), ErrorKind::Misuse { .. }), "{error}");
        assert_eq!(std::fs::read_dir(directory.path()).expect("it is there").count(), 0, "the probe is gone");
    });
}

#[test]
#[ignore = "long: killed and stopped processes"]
fn a_store_that_is_killed_at_any_moment_loses_no_acknowledged_write() {
    let place = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let mut server = S3::start(place.path()).unwrap_or_else(|absent| panic!("{absent}"));
    let store = Objects(S3::client(&server.address.to_string()).expect("a store"));
    let mut rng = palisade_testbench::faulty_disk::Rng::new(7);
    survive(&store, super::kills(5), || {
        // The random moment of the kill is what is tested.
        thread::sleep(std::time::Duration::from_micros(rng.below(500_000) as u64));
        server.kill();
        server.restart().expect("it reads its files");
    });
}

fn token(number: u64) -> Token {
    Token::new(number).expect("a token")
}

/// An object in the real store, reached over a transport with faults and over one without.
async fn twice(name: &str) -> (Faults, Object, Object) {
    let (faults, address) = (Faults::default(), address().to_string());
    let faulty = Objects(S3::client_over(&address, &faults).expect("a store"));
    (faults, faulty.open(name).await.expect("a path"), in_s3().open(name).await.expect("a path"))
}

/// Does `work`. The reply to its next put is lost, and `meanwhile` runs before the store client retries.
async fn losing<T>(faults: &Faults, how: Loss, work: impl Future<Output = T>, meanwhile: impl AsyncFnOnce()) -> T {
    faults.lose_next(how);
    let meanwhile = async {
        faults.until_lost().await;
        meanwhile().await;
        faults.pass();
    };
    tokio::join!(work, meanwhile).0
}

const LOSSES: [Loss; 2] = [Loss::Broken, Loss::Replaced];

#[test]
fn a_put_that_the_store_client_has_repeated_is_applied_once() {
    check(async {
        for how in LOSSES {
            let (faults, faulty, direct) = twice(&format!("repeated-{how:?}")).await;
            let sealed = losing(&faults, how, Sealed::seal(faulty.clone(), token(1)), async || {}).await;
            let mut sealed = sealed.expect("the seal was carried out");
            losing(&faults, how, sealed.put("first"), async || {}).await.expect("it was carried out");
            losing(&faults, how, sealed.put("second"), async || {}).await.expect("it was carried out");
            assert_eq!(sealed.get().await.expect("it is sealed"), "second");
            let mut direct = Sealed::seal(direct, token(1)).await.expect("it is the same token");
            assert_eq!(direct.get().await.expect("it is sealed"), "second");
            direct.put("third").await.expect("the numbers go on");
        }
    });
}

#[test]
fn a_put_that_was_overtaken_before_the_store_client_repeated_it_may_have_happened() {
    check(async {
        for how in LOSSES {
            let (faults, faulty, direct) = twice(&format!("overtaken-{how:?}")).await;
            let mut paused = Sealed::seal(faulty, token(33)).await.expect("it is new");
            paused.put("first").await.expect("it is sealed");
            let written = losing(&faults, how, paused.put("second"), async || {
                let newer = Sealed::seal(direct.clone(), token(34)).await.expect("it is newer");
                assert_eq!(newer.get().await.expect("it is sealed"), "second", "it was carried out");
            });
            let error = written.await.expect_err("its outcome is unknown");
            assert!(error.may_have_taken_effect() && !error.is_retryable(), "{error}");
            assert!(error.to_string().contains("34"), "{error}");
            assert!(!paused.is_settled());
            let error = paused.settle().await.expect_err("it is overtaken");
            assert_eq!(error.overtaken_by(), Some(token(34)), "{error}");
        }
    });
}

#[test]
fn a_put_that_another_handle_followed_before_the_store_client_repeated_it_may_have_happened() {
    check(async {
        for how in LOSSES {
            let (faults, faulty, direct) = twice(&format!("followed-{how:?}")).await;
            let mut one = Sealed::seal(faulty, token(33)).await.expect("it is new");
            let written = losing(&faults, how, one.put("one"), async || {
                let mut two = Sealed::seal(direct.clone(), token(33)).await.expect("it is the same token");
                assert_eq!(two.get().await.expect("it is sealed"), "one");
                two.put("two").await.expect("it is sealed");
            });
            let error = written.await.expect_err("its outcome is unknown");
            assert!(error.may_have_taken_effect(), "{error}");
        }
    });
}

#[test]
fn a_put_whose_object_was_replaced_from_outside_may_have_happened() {
    check(async {
        let (faults, faulty, _) = twice("outside").await;
        let mut sealed = Sealed::seal(faulty, token(33)).await.expect("it is new");
        let store = in_s3().0;
        let written = losing(&faults, Loss::Broken, sealed.put("one"), async || {
            store.put(&"outside".into(), "plain".into()).await.expect("the store has no fence");
        });
        let error = written.await.expect_err("its outcome is unknown");
        assert!(error.may_have_taken_effect(), "{error}");
    });
}

#[test]
fn a_store_is_seen_to_enforce_conditions_though_answers_are_lost() {
    check(async {
        let faults = Faults::default();
        let store = S3::client_over(&address().to_string(), &faults).expect("a store");
        for how in LOSSES {
            losing(&faults, how, Bucket::open(store.clone()), async || {}).await.expect("the store can do it");
        }
    });
}

#[test]
fn an_empty_object_is_one_that_was_never_sealed() {
    check(async {
        for store in [in_memory().0, in_s3().0] {
            let name = format!("empty-{}", std::process::id());
            store.put(&name.as_str().into(), PutPayload::new()).await.expect("it can be written");
            assert_eq!(palisade_fence::object_store::mark(store.clone(), &name).await.expect("it is there"), None);
            let object = Objects(store.clone()).open(&name).await.expect("a path");
            let mut sealed = Sealed::seal(object, token(1)).await.expect("it is new");
            assert_eq!(sealed.get().await.expect("it is sealed"), "");
            // The object is emptied by hand.
            store.put(&name.as_str().into(), PutPayload::new()).await.expect("it can be written");
            let error = sealed.put("new").await.expect_err("the mark is gone");
            assert!(matches!(error.kind(), ErrorKind::NotSealed), "{error}");
        }
    });
}

#[test]
fn one_object_has_one_mark_however_its_path_is_spelled() {
    check(async {
        let objects = in_memory();
        let sealed = Sealed::seal(objects.open("spelled/orders").await.expect("a path"), token(34)).await;
        let _sealed = sealed.expect("it is new");
        for spelling in ["/spelled/orders", "spelled/orders/", "/spelled/orders/"] {
            let other = objects.open(spelling).await.expect("a path");
            assert_eq!(Sealed::seal(other, token(33)).await.expect_err("older").overtaken_by(), Some(token(34)));
        }
        let _ = Sealed::seal(objects.open("spelled/Orders").await.expect("a path"), token(1))
            .await
            .expect("another object");
    });
}
