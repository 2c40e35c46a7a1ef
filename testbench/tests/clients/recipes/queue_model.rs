//! Random steps on a queue and on a model of it. Both must agree, and after every step the tables must keep their invariants.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use palisade::Token;
use palisade::recipe::queue::{Job, JobError, JobId, JobInfo, Queue};
use palisade::recipe::store::{Postgres, Sqlite};
use palisade_testbench::bounded::{check_many, number_from_env};
use palisade_testbench::servers::Postgres as Server;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use super::queue::{Database, LONG, TestStore, database_on, expire};

const KEYS: [&str; 3] = ["a", "b", "c"];
const ATTEMPTS: u32 = 2;

#[derive(Debug, Clone)]
enum Step {
    Push(usize),
    Take,
    Done(usize),
    Fail(usize),
    GiveBack(usize),
    Extend(usize),
    /// The visibility of all jobs in work passes.
    Expire,
    Retry(usize),
    Discard(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        5 => (0..KEYS.len()).prop_map(Step::Push),
        6 => Just(Step::Take),
        3 => (0..8usize).prop_map(Step::Done),
        2 => (0..8usize).prop_map(Step::Fail),
        1 => (0..8usize).prop_map(Step::GiveBack),
        1 => (0..8usize).prop_map(Step::Extend),
        1 => Just(Step::Expire),
        1 => (0..8usize).prop_map(Step::Retry),
        1 => (0..8usize).prop_map(Step::Discard),
    ]
}

/// A key, as it should be.
#[derive(Default)]
struct Key {
    /// The jobs that are not dead, in order, with their attempts.
    live: Vec<(JobId, u32)>,
    dead: Vec<JobId>,
    is_blocked: bool,
    /// The delivery that may be settled, and whether its visibility has not passed.
    in_work: Option<(JobId, Token, bool)>,
    last: Option<Token>,
}

impl Key {
    /// Follows a take, which makes first jobs without attempts left dead letters.
    fn follow(&mut self, dead: &[JobInfo], blocks: bool) {
        while let Some((id, attempt)) = self.live.first().copied()
            && dead.iter().any(|dead| dead.id == id)
        {
            assert!(self.is_due() && attempt >= ATTEMPTS, "a job became a dead letter too early");
            self.bury(id, blocks);
        }
    }

    fn bury(&mut self, id: JobId, blocks: bool) {
        self.live.retain(|(live, _)| *live != id);
        self.dead.push(id);
        self.is_blocked = blocks;
        self.in_work = None;
    }

    fn is_due(&self) -> bool {
        !self.live.is_empty() && !self.is_blocked && !self.in_work.is_some_and(|(.., is_visible)| is_visible)
    }
}

#[test]
fn a_queue_in_sqlite_agrees_with_its_model() {
    let database = Database::new(String::new());
    run_cases(async |steps, blocks| {
        let store = Sqlite::open(&database.file).await.expect("a file");
        compare(store, &database, steps, blocks).await;
    });
}

#[test]
#[ignore = "long: crowds"]
fn a_queue_in_postgresql_agrees_with_its_model() {
    let database = database_on(Server::shared().unwrap_or_else(|absent| panic!("{absent}")));
    run_cases(async |steps, blocks| {
        let store = Postgres::connect(&database.url).await.expect("a database");
        compare(store, &database, steps, blocks).await;
    });
}

fn run_cases(mut case: impl AsyncFnMut(Vec<Step>, bool)) {
    let cases = number_from_env("PROPTEST_CASES", 12);
    check_many(cases, Duration::from_secs(60), async {
        let mut runner = TestRunner::deterministic();
        for number in 0..cases {
            let steps = vec(step(), 1..60).new_tree(&mut runner).expect("steps").current();
            case(steps, number % 2 == 0).await;
        }
    });
}

async fn compare<S: TestStore>(store: S, database: &Database, steps: Vec<Step>, blocks: bool) {
    let name = palisade_testbench::fixture::unused_name("queue ");
    let mut queue =
        Queue::new(&store, name.as_str()).visibility(LONG).attempts(ATTEMPTS).backoff(Duration::ZERO, Duration::ZERO);
    if !blocks {
        queue = queue.dangerous_continue_after_dead_letters();
    }
    // Creates the tables.
    Queue::new(&store, "another").push("x", "x").await.expect("it is pushed");
    let mut model: BTreeMap<String, Key> = KEYS.iter().map(|key| ((*key).to_owned(), Key::default())).collect();
    let mut held: Vec<Job<S>> = Vec::new();
    for step in &steps {
        let at = |number: usize, len: usize| (len > 0).then(|| number % len.max(1));
        match step {
            Step::Push(key) => {
                let id = queue.push(KEYS[*key], "x").await.expect("it is pushed");
                model.get_mut(KEYS[*key]).expect("a key").live.push((id, 0));
                model.get_mut(KEYS[*key]).expect("a key").live.sort();
            }
            Step::Take => {
                let taken = queue.take().await.expect("an answer");
                let dead = queue.dead_letters(1000).await.expect("a list");
                model.values_mut().for_each(|key| key.follow(&dead, blocks));
                match taken {
                    None => assert!(!model.values().any(Key::is_due), "a job that is due was not delivered"),
                    Some(job) => {
                        let key = model.get_mut(job.key()).expect("a key");
                        assert!(key.is_due(), "{} has a job in work, or is blocked: {steps:?}", job.key());
                        let first = key.live.first_mut().expect("it is due");
                        first.1 += 1;
                        assert_eq!((first.0, first.1), (job.id(), job.attempt()), "the first of its key");
                        assert!(key.last.replace(job.token()) < Some(job.token()), "the tokens of a key rise");
                        key.in_work = Some((job.id(), job.token(), true));
                        held.push(job);
                    }
                }
            }
            Step::Done(number) | Step::Fail(number) | Step::GiveBack(number) | Step::Extend(number) => {
                let Some(index) = at(*number, held.len()) else { continue };
                let (id, token, attempt) = (held[index].id(), held[index].token(), held[index].attempt());
                let key = model.get_mut(held[index].key()).expect("a key");
                let is_current = key.in_work.is_some_and(|(job, current, _)| (job, current) == (id, token));
                let settled = match step {
                    Step::Done(_) => held.remove(index).done().await,
                    Step::Fail(_) => held.remove(index).fail("no").await,
                    Step::GiveBack(_) => held.remove(index).give_back().await,
                    _ => held[index].extend().await,
                };
                match settled {
                    Ok(()) => assert!(is_current, "a late settlement was accepted: {steps:?}"),
                    Err(JobError::Stale { .. }) => assert!(!is_current, "a settlement in time was refused"),
                    Err(error) => panic!("{error}"),
                }
                match step {
                    _ if !is_current => {}
                    Step::Done(_) => {
                        key.in_work = None;
                        key.live.retain(|(live, _)| *live != id);
                    }
                    Step::Fail(_) if attempt >= ATTEMPTS => key.bury(id, blocks),
                    Step::Fail(_) => key.in_work = None,
                    Step::GiveBack(_) => {
                        key.in_work = None;
                        key.live.iter_mut().filter(|(live, _)| *live == id).for_each(|(_, attempt)| *attempt -= 1);
                    }
                    _ => key.in_work = Some((id, token, true)),
                }
            }
            Step::Expire => {
                expire(&store, database).await;
                for key in model.values_mut() {
                    key.in_work = key.in_work.map(|(id, token, _)| (id, token, false));
                }
            }
            Step::Retry(number) | Step::Discard(number) => {
                let dead = queue.dead_letters(100).await.expect("a list");
                let Some(index) = at(*number, dead.len()) else { continue };
                let (id, key) = (dead[index].id, model.get_mut(&dead[index].key).expect("a key"));
                key.dead.retain(|dead| *dead != id);
                key.is_blocked = false;
                match step {
                    Step::Retry(_) => {
                        assert!(queue.retry(id).await.expect("an answer"));
                        key.live.push((id, 0));
                        key.live.sort();
                    }
                    _ => assert!(queue.discard(id).await.expect("an answer")),
                }
            }
        }
        check_tables(&store, database, &name, step).await;
        let listed = |jobs: Vec<JobInfo>| jobs.into_iter().map(|job| job.id).collect::<BTreeSet<_>>();
        let live: BTreeSet<JobId> = model.values().flat_map(|key| &key.live).map(|(id, _)| *id).collect();
        let dead: BTreeSet<JobId> = model.values().flat_map(|key| &key.dead).copied().collect();
        assert_eq!(listed(queue.jobs(1000).await.expect("a list")), live, "after {step:?} of {steps:?}");
        assert_eq!(listed(queue.dead_letters(1000).await.expect("a list")), dead, "after {step:?} of {steps:?}");
    }
}

/// What the tables must always say. Each query finds keys that break an invariant.
async fn check_tables<S: TestStore>(store: &S, database: &Database, queue: &str, step: &Step) {
    let live = "SELECT 1 FROM palisade_queue_job j WHERE j.queue = k.queue AND j.key = k.key AND j.dead = 0";
    let not_live = format!("k.job IS NOT NULL AND NOT EXISTS ({live} AND j.id = k.job)");
    let mut broken = vec![
        ("a job in work does not exist or is dead", not_live),
        ("a token is above the last possible one", "k.token >= 9007199254740992".to_owned()),
    ];
    if S::NAME == "postgres" {
        broken.push(("an idle key has a job", format!("k.due_at IS NULL AND EXISTS ({live})")));
    }
    for (what, condition) in broken {
        let sql = format!("SELECT k.key FROM palisade_queue_key k WHERE k.queue = '{queue}' AND {condition}");
        assert_eq!(store.select(database, &sql).await, Vec::<String>::new(), "{what}, after {step:?}");
    }
    let sql = format!(
        "SELECT j.key FROM palisade_queue_job j WHERE j.queue = '{queue}' AND j.dead = 0 AND NOT EXISTS
             (SELECT 1 FROM palisade_queue_key k WHERE k.queue = j.queue AND k.key = j.key)"
    );
    assert_eq!(store.select(database, &sql).await, Vec::<String>::new(), "a job has no key, after {step:?}");
}
