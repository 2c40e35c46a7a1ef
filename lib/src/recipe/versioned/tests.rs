//! Writes whose replies are lost, and writers that come between. The stores themselves are tested in the testbench.

use std::sync::{Arc, Mutex};

use super::*;

/// What happens to the next write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// It is carried out, and its reply is lost. Then others write this often.
    ReplyLost { then_others: u32 },
    /// It is not carried out, and neither is there a reply.
    RequestLost,
    /// There is no reply. It is carried out just before the write after it.
    Late,
    /// The client of the store repeats it after its reply was lost, and is refused because of its own write. Then others write this
    /// often.
    Repeated { then_others: u32 },
    /// Another writer is faster.
    Overtaken,
}

/// A store in memory with faults. It takes refusals for uncertain, as object stores do.
#[derive(Debug, Clone, Default)]
struct Faulty(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    stored: Option<(Vec<u8>, String)>,
    faults: Vec<Fault>,
    late: Option<(Vec<u8>, String, Option<String>)>,
}

impl State {
    fn put(&mut self, bytes: &[u8], write: &str, expected: Option<&str>) -> bool {
        let is_unchanged = self.stored.as_ref().map(|(_, write)| write.as_str()) == expected;
        if is_unchanged {
            self.stored = Some((bytes.to_owned(), write.to_owned()));
        }
        is_unchanged
    }

    /// Adds 1000 as another writer.
    fn others(&mut self, count: u32) {
        for _ in 0..count {
            let previous = self
                .stored
                .as_ref()
                .map(|(bytes, _)| serde_json::from_slice::<Envelope<u64>>(bytes).expect("an envelope"));
            let (id, value) = (Writer::new().write(), previous.as_ref().map_or(0, |previous| previous.value) + 1000);
            let history = History::next(previous.as_ref().map(|previous| &previous.history), &id);
            self.stored = Some((serde_json::to_vec(&Envelope { history, value }).expect("JSON"), id));
        }
    }
}

impl Sealed for Faulty {}

impl VersionedStore for Faulty {
    const NAME: &'static str = "faulty";
    const REFUSAL_IS_CERTAIN: bool = false;

    async fn get(&self, _: &str) -> Result<Option<(Vec<u8>, Condition)>, Error> {
        let state = self.0.lock().expect("it is free");
        Ok(state.stored.clone().map(|(bytes, write)| (bytes, Condition::of(&write))))
    }

    async fn put(
        &self,
        name: &str,
        bytes: &[u8],
        write: &str,
        expected: Option<&Condition>,
    ) -> Result<Option<Condition>, Error> {
        let mut state = self.0.lock().expect("it is free");
        let expected = expected.map(|expected| expected.write().to_owned());
        if let Some((bytes, write, expected)) = state.late.take() {
            state.put(&bytes, &write, expected.as_deref());
        }
        let lost = || {
            let what = "the reply was lost".to_owned();
            let kind = ErrorKind::Outage { what, may_have_taken_effect: true, is_retryable: true, source: None };
            Err(Error::new(kind, Self::NAME, STORE).on(name))
        };
        match state.faults.pop() {
            None => Ok(state.put(bytes, write, expected.as_deref()).then(|| Condition::of(write))),
            Some(Fault::RequestLost) => lost(),
            Some(Fault::ReplyLost { then_others }) => {
                state.put(bytes, write, expected.as_deref());
                state.others(then_others);
                lost()
            }
            Some(Fault::Late) => {
                state.late = Some((bytes.to_owned(), write.to_owned(), expected));
                lost()
            }
            Some(Fault::Repeated { then_others }) => {
                state.put(bytes, write, expected.as_deref());
                state.others(then_others);
                Ok(None)
            }
            Some(Fault::Overtaken) => {
                state.others(1);
                Ok(None)
            }
        }
    }
}

/// Adds 1 under these faults, and returns the result and the value that is stored in the end.
fn add_one(faults: &[Fault], created_by_others: bool) -> (Result<Updated<u64>, Error>, u64) {
    let store = Faulty::default();
    {
        let mut state = store.0.lock().expect("it is free");
        state.faults = faults.iter().rev().copied().collect();
        state.others(u32::from(created_by_others));
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let counter = Versioned::<u64, _>::new(&store, "counter").attempts(5);
        let updated = counter.update(|value| value.unwrap_or_default() + 1).await;
        let stored = counter.load().await.expect("an answer").map_or(0, |(value, _)| value);
        (updated, stored)
    })
}

#[test]
fn an_update_whose_reply_is_lost_is_applied_once() {
    use Fault::{Late, Overtaken, Repeated, ReplyLost, RequestLost};
    for faults in [
        vec![],
        vec![ReplyLost { then_others: 0 }],
        vec![ReplyLost { then_others: 1 }],
        vec![ReplyLost { then_others: 63 }],
        vec![RequestLost, ReplyLost { then_others: 2 }],
        vec![Late],
        vec![Late, RequestLost],
        vec![Late, Overtaken],
        vec![Late, Late, ReplyLost { then_others: 3 }],
        vec![Repeated { then_others: 0 }],
        vec![Repeated { then_others: 4 }],
        vec![Overtaken, Repeated { then_others: 1 }],
    ] {
        for created_by_others in [false, true] {
            let (updated, stored) = add_one(&faults, created_by_others);
            let updated = updated.unwrap_or_else(|error| panic!("{faults:?}: {error}"));
            assert_eq!((updated.value % 1000, stored % 1000), (1, 1), "{faults:?}");
        }
    }
}

#[test]
fn an_update_that_may_be_forgotten_is_not_repeated() {
    let (updated, stored) = add_one(&[Fault::ReplyLost { then_others: 70 }], true);
    let error = updated.expect_err("it cannot know");
    assert!(error.may_have_taken_effect() && !error.is_retryable(), "{error}");
    assert_eq!(stored % 1000, 1);
}

#[test]
fn an_update_that_others_overtake_each_time_is_given_up() {
    let (updated, stored) = add_one(&[Fault::Overtaken; 5], true);
    let error = updated.expect_err("others were faster");
    assert!(error.is_retryable(), "{error}");
    assert_eq!(stored, 6000);
    let (updated, _) = add_one(&[Fault::Overtaken; 4], true);
    assert_eq!(updated.expect("the last attempt").attempts, 5);
}

#[test]
fn an_update_whose_last_reply_is_lost_may_have_taken_effect() {
    let (updated, stored) =
        add_one(&[Fault::Overtaken, Fault::Overtaken, Fault::Overtaken, Fault::Overtaken, Fault::Late], true);
    assert!(updated.expect_err("there was no reply").may_have_taken_effect());
    assert_eq!(stored % 1000, 0);
}

#[test]
fn a_store_whose_client_repeats_a_write_is_no_other_writer() {
    let store = Faulty::default();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let value = Versioned::<u64, _>::new(&store, "value");
        store.0.lock().expect("it is free").faults = vec![Fault::Repeated { then_others: 0 }];
        let Stored::Stored(version) = value.store_if(None, &7).await.expect("an answer") else {
            panic!("it is stored")
        };
        assert!(matches!(value.store_if(Some(&version), &8).await.expect("an answer"), Stored::Stored(_)));
        store.0.lock().expect("it is free").faults = vec![Fault::Overtaken];
        let (_, version) = value.load().await.expect("an answer").expect("a value");
        assert_eq!(value.store_if(Some(&version), &9).await.expect("an answer"), Stored::Changed);
    });
}

#[test]
fn names_and_values_are_bounded() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let long = "n".repeat(MAX_NAME_BYTES + 1);
        for name in ["", "a\nb", &long] {
            let error = Versioned::<u64, _>::new(&Faulty::default(), name).load().await.expect_err(name);
            assert!(matches!(error.kind(), ErrorKind::Misuse(Misuse::Invalid(_))), "{error}");
        }
        let value = Versioned::<String, _>::new(&Faulty::default(), "value");
        value.store_if(None, &"v".repeat(MAX_VALUE_BYTES)).await.expect_err("it is too long");
        value.update(|_| "v".repeat(MAX_VALUE_BYTES)).await.expect_err("it is too long");
        assert!(value.load().await.expect("an answer").is_none());
    });
}
