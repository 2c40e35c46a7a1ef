//! Random commands to the rules of `core` and to the procedures in MariaDB: both must say the same, and leave the same
//! holders and the same queues behind.
//!
//! Two things differ, and are not asked for: the procedures remember the answer to a numbered request only while it waits
//! or is held, or was cancelled; and as tokens are counted by lock, they cannot tell a token that was never given from
//! one that is over.

use std::collections::BTreeMap;

use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Row};
use palisade_core::{
    Acquire, Answer, Caller, Command, Delay, GrantState, Label, Limits, LockName, Machine, Mode, Patience, Reentry,
    Refusal, RequestNo, SessionId, Token, Ttl, Value, Waiting, Want,
};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::scene::{Scene, check_without_bound};

const LOCKS: usize = 4;

#[derive(Debug, Clone)]
enum Step {
    Open,
    Close(usize),
    Expire(usize),
    Acquire {
        who: usize,
        wants: Vec<(usize, Mode)>,
        waits: bool,
        may_queue: bool,
        delay: bool,
        value: bool,
    },
    Repeat(usize),
    Cancel(usize),
    /// Of a request that has not come, which then comes.
    CancelFirst {
        who: usize,
        lock: usize,
    },
    Release {
        grant: usize,
        who: Option<usize>,
        lock: Option<usize>,
    },
    Publish {
        grant: usize,
        who: Option<usize>,
    },
    Force {
        lock: usize,
        only: Option<usize>,
    },
    Resize {
        lock: usize,
        limit: u32,
    },
    EndDelay(usize),
}

fn mode() -> impl Strategy<Value = Mode> {
    prop_oneof![
        5 => Just(Mode::Exclusive),
        3 => Just(Mode::Shared),
        3 => (0..4_u32, 1..4_u32).prop_map(|(count, of)| Mode::Permits { count, of }),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let acquire = (0..4_usize, vec((0..LOCKS, mode()), 1..4), any::<[bool; 2]>(), 0..8_u8, 0..8_u8);
    let acquire = acquire.prop_map(|(who, wants, [waits, may_queue], delay, value)| Step::Acquire {
        who,
        wants,
        waits,
        may_queue,
        delay: delay == 0,
        value: value == 0,
    });
    prop_oneof![
        1 => Just(Step::Open),
        1 => (0..4_usize).prop_map(Step::Close),
        2 => (0..4_usize).prop_map(Step::Expire),
        16 => acquire,
        2 => (0..64_usize).prop_map(Step::Repeat),
        3 => (0..64_usize).prop_map(Step::Cancel),
        1 => (0..4_usize, 0..LOCKS).prop_map(|(who, lock)| Step::CancelFirst { who, lock }),
        8 => (0..64_usize, proptest::option::weighted(0.1, 0..4_usize), proptest::option::weighted(0.1, 0..LOCKS))
            .prop_map(|(grant, who, lock)| Step::Release { grant, who, lock }),
        1 => (0..64_usize, proptest::option::weighted(0.1, 0..4_usize))
            .prop_map(|(grant, who)| Step::Publish { grant, who }),
        2 => (0..LOCKS, proptest::option::of(0..64_usize)).prop_map(|(lock, only)| Step::Force { lock, only }),
        2 => (0..LOCKS, 0..5_u32).prop_map(|(lock, limit)| Step::Resize { lock, limit }),
        2 => (0..64_usize).prop_map(Step::EndDelay),
    ]
}

/// Both, side by side.
struct Pair<'a> {
    machine: Machine,
    store: &'a mut Conn,
    prefix: String,
    /// In the order in which they were opened: the rules' number, and the store's.
    sessions: Vec<(SessionId, i64)>,
    last_number: u64,
    asked: Vec<Acquire>,
    /// The rules' tokens, with the store's at each lock.
    tokens: BTreeMap<(LockName, Token), i64>,
    highest: BTreeMap<LockName, i64>,
}

/// An answer, as far as both must give the same.
#[derive(Debug, PartialEq, Eq)]
enum Said {
    Granted,
    Queued,
    Busy,
    Done,
    Forced(u32),
    Refused(String),
}

fn said(answer: &Result<Answer, Refusal>) -> Said {
    match answer {
        Ok(Answer::Granted { .. }) => Said::Granted,
        Ok(Answer::Queued { .. }) => Said::Queued,
        Ok(Answer::Busy) => Said::Busy,
        Ok(Answer::Forced { grants, .. }) => Said::Forced(*grants),
        Ok(Answer::Opened { .. } | Answer::Done) => Said::Done,
        Err(refusal) => refused(refusal),
    }
}

/// A refusal without the numbers that each side counts for itself.
fn refused(refusal: &Refusal) -> Said {
    Said::Refused(match refusal {
        Refusal::NotHeld { .. } | Refusal::NeverGranted { .. } => "not held".to_owned(),
        Refusal::AlreadyHeld { lock, .. } => format!("already held: {lock}"),
        Refusal::OtherSession { lock, .. } => format!("another's: {lock}"),
        Refusal::NoSuchSession { .. } => "no such session".to_owned(),
        other => format!("{other:?}"),
    })
}

fn refused_in(detail: &str) -> Said {
    refused(&serde_json::from_str(detail).unwrap_or_else(|error| panic!("{detail}: {error}")))
}

fn unless_refused(row: &Row, column: usize) -> Said {
    row.get::<Option<String>, _>(column).flatten().map_or(Said::Done, |refusal| refused_in(&refusal))
}

fn text(row: &Row, column: usize) -> String {
    row.get::<Option<String>, _>(column).flatten().unwrap_or_default()
}

fn number(row: &Row, column: usize) -> Option<i64> {
    row.get::<Option<i64>, _>(column).flatten()
}

/// What a mode takes, and of how many.
fn need(mode: Mode) -> (i64, Option<i64>) {
    match mode {
        Mode::Exclusive => (i64::from(u32::MAX), None),
        Mode::Shared => (1, None),
        Mode::Permits { count, of } => (i64::from(count), Some(i64::from(of))),
    }
}

impl<'a> Pair<'a> {
    fn new(store: &'a mut Conn, case: u64) -> Pair<'a> {
        Pair {
            machine: Machine::new(Limits::default()),
            store,
            prefix: format!("{case}/"),
            sessions: Vec::new(),
            last_number: 0,
            asked: Vec::new(),
            tokens: BTreeMap::new(),
            highest: BTreeMap::new(),
        }
    }

    fn lock(&self, lock: usize) -> LockName {
        LockName::new(&format!("{}{lock}", self.prefix)).expect("a name")
    }

    fn session(&self, who: usize) -> Option<(SessionId, i64)> {
        (!self.sessions.is_empty()).then(|| self.sessions[who % self.sessions.len()])
    }

    fn store_session(&self, session: SessionId) -> i64 {
        self.sessions.iter().find(|(ours, _)| *ours == session).expect("it was opened").1
    }

    fn next_number(&mut self) -> RequestNo {
        self.last_number += 1;
        RequestNo::new(self.last_number).expect("above 0")
    }

    /// Grants that there are or were, of one lock each, as the rules number them.
    fn grant(&self, grant: usize) -> Option<(LockName, Token, i64)> {
        let at = grant % self.tokens.len().max(1);
        self.tokens.iter().nth(at).map(|((lock, token), theirs)| (lock.clone(), *token, *theirs))
    }

    /// Who holds a grant; anybody, if nobody does.
    fn holder(&self, lock: &LockName, token: Token) -> Option<(SessionId, i64)> {
        let holders = self.machine.lock(lock).into_iter().flat_map(|lock| lock.holders().collect::<Vec<_>>());
        let held = holders.into_iter().find(|grant| grant.token == token).and_then(|grant| match grant.state {
            GrantState::Held { session, .. } => Some(session),
            GrantState::Withheld => None,
        });
        held.map(|session| (session, self.store_session(session))).or(self.session(0))
    }

    async fn take(&mut self, step: Step) {
        let (ours, theirs) = match step {
            Step::Open => return self.open().await,
            Step::Close(who) => {
                let Some((session, id)) = self.session(who) else { return };
                self.call(format!("CALL palisade_close({id})")).await;
                drop(self.machine.apply(Command::CloseSession { session }));
                return self.compare().await;
            }
            Step::Expire(who) => {
                let Some((session, id)) = self.session(who) else { return };
                let overdue = "UTC_TIMESTAMP(6) - INTERVAL 1 SECOND";
                self.call(format!("UPDATE palisade_session SET deadline = {overdue} WHERE id = {id}")).await;
                self.sweep().await;
                drop(self.machine.apply(Command::ExpireSession { session }));
                return self.compare().await;
            }
            Step::Acquire { who, wants, waits, may_queue, delay, value } => {
                let Some((session, _)) = self.session(who) else { return };
                let number = Some(self.next_number());
                let wants = wants.into_iter().map(|(lock, mode)| Want { lock: self.lock(lock), mode });
                let ask = Acquire {
                    patience: if waits { Patience::Wait } else { Patience::Try },
                    reentry: if may_queue { Reentry::Queue } else { Reentry::Refuse },
                    delay: delay.then(|| Delay::from_ms(3_600_000).expect("an hour")),
                    value: value.then(|| Value::new(b"a value")),
                    ..Acquire::many(Caller { session, number }, wants)
                };
                self.asked.push(ask.clone());
                self.ask(ask).await
            }
            Step::Repeat(which) => {
                let Some(ask) = self.asked.get(which % self.asked.len().max(1)).cloned() else { return };
                if !self.is_live(&ask) {
                    return;
                }
                self.ask(ask).await
            }
            Step::Cancel(which) => {
                let Some(ask) = self.asked.get(which % self.asked.len().max(1)).cloned() else { return };
                self.cancel(ask.caller).await
            }
            Step::CancelFirst { who, lock } => {
                let Some((session, _)) = self.session(who) else { return };
                let caller = Caller { session, number: Some(self.next_number()) };
                let (ours, theirs) = self.cancel(caller).await;
                assert_eq!(ours, theirs);
                self.ask(Acquire::exclusive(caller, self.lock(lock))).await
            }
            Step::Release { grant, who, lock } => {
                let Some((held, token, theirs)) = self.grant(grant) else { return };
                let lock = lock.map_or(held.clone(), |lock| self.lock(lock));
                let who = who.and_then(|who| self.session(who)).or(self.holder(&held, token));
                let Some((session, id)) = who else { return };
                // Another lock may have had the same number, which is none of the rules' tokens there.
                if lock != held {
                    return;
                }
                let row = self.row(format!("CALL palisade_give_back({id}, '{lock}', {theirs})")).await;
                let theirs = match text(&row, 0).as_str() {
                    "released" => Said::Done,
                    _ => refused_in(&text(&row, 1)),
                };
                (
                    said(&self.machine.apply(Command::Release { caller: Some(session.into()), lock, token }).answer),
                    theirs,
                )
            }
            Step::Publish { grant, who } => {
                let Some((lock, token, theirs)) = self.grant(grant) else { return };
                let who = who.and_then(|who| self.session(who)).or(self.holder(&lock, token));
                let Some((session, id)) = who else { return };
                let row = self.row(format!("CALL palisade_publish({id}, '{lock}', {theirs}, 'another')")).await;
                let theirs = unless_refused(&row, 0);
                let value = Value::new(b"another");
                (
                    said(&self.machine.apply(Command::Publish { caller: session.into(), lock, token, value }).answer),
                    theirs,
                )
            }
            Step::Force { lock, only } => {
                let only = only.and_then(|only| self.grant(only));
                let lock = only.as_ref().map_or(self.lock(lock), |(lock, ..)| lock.clone());
                let theirs = only.as_ref().map_or("NULL".to_owned(), |(_, _, theirs)| theirs.to_string());
                let row = self.row(format!("CALL palisade_force('{lock}', {theirs}, 'me', 'me')")).await;
                let theirs = match unless_refused(&row, 2) {
                    Said::Done => {
                        let moved_to = self.highest.entry(lock.clone()).or_default();
                        let token = number(&row, 1).expect("a token");
                        assert!(token > *moved_to, "a token came twice");
                        *moved_to = token;
                        Said::Forced(number(&row, 0).expect("a number") as u32)
                    }
                    refused => refused,
                };
                let (by, reason) = (Label::new("me"), Label::new("me"));
                let only = only.map(|(_, token, _)| token);
                (said(&self.machine.apply(Command::ForceRelease { lock, only, by, reason }).answer), theirs)
            }
            Step::Resize { lock, limit } => {
                let lock = self.lock(lock);
                let row = self.row(format!("CALL palisade_resize('{lock}', {limit})")).await;
                let theirs = unless_refused(&row, 0);
                (said(&self.machine.apply(Command::Resize { lock, limit }).answer), theirs)
            }
            Step::EndDelay(which) => {
                let withheld: Vec<_> = self.machine.withheld().collect();
                let Some((locks, token, _)) = withheld.get(which % withheld.len().max(1)) else { return };
                for lock in locks {
                    let theirs = self.tokens[&(lock.clone(), *token)];
                    for table in ["lock", "claim"] {
                        let over =
                            format!("withheld_until = UTC_TIMESTAMP(6) WHERE name = '{lock}' AND token = {theirs}");
                        self.call(format!("UPDATE palisade_{table} SET {over} AND withheld_until IS NOT NULL")).await;
                    }
                }
                self.sweep().await;
                drop(self.machine.apply(Command::EndDelay { lock: locks[0].clone(), token: *token }));
                return self.compare().await;
            }
        };
        assert_eq!(ours, theirs);
        self.compare().await;
    }

    async fn open(&mut self) {
        let ttl = Ttl::from_ms(600_000).expect("ten minutes");
        let row = self.row("CALL palisade_open(600000, 'me')".to_owned()).await;
        let id = number(&row, 0).expect("it opens");
        match self.machine.apply(Command::OpenSession { ttl, label: Label::new("me") }).answer {
            Ok(Answer::Opened { session }) => self.sessions.push((session, id)),
            other => panic!("{other:?}"),
        }
    }

    async fn sweep(&mut self) {
        while number(&self.row("CALL palisade_sweep()".to_owned()).await, 0) == Some(1) {}
    }

    async fn call(&mut self, sql: String) {
        self.store.query_drop(&sql).await.unwrap_or_else(|error| panic!("{error}: {sql}"));
    }

    async fn row(&mut self, sql: String) -> Row {
        let row = self.store.query_first(&sql).await.unwrap_or_else(|error| panic!("{error}: {sql}"));
        row.unwrap_or_else(|| panic!("{sql} does not answer"))
    }

    async fn ask(&mut self, ask: Acquire) -> (Said, Said) {
        let id = self.store_session(ask.caller.session);
        let request = ask.caller.number.expect("it has one").get();
        let (waits, may_queue) = (ask.patience == Patience::Wait, ask.reentry == Reentry::Queue);
        let [want, ..] = &ask.wants[..] else { unreachable!("at least one") };
        let is_plain =
            ask.wants.len() == 1 && want.mode == Mode::Exclusive && ask.delay.is_none() && ask.value.is_none();
        let row = if is_plain {
            let lock = &want.lock;
            self.row(format!("CALL palisade_take({id}, 0, {request}, '{lock}', {waits}, {may_queue})")).await
        } else {
            let hex = |lock: &LockName| lock.as_str().bytes().map(|byte| format!("{byte:02X}")).collect::<String>();
            let wants = ask.wants.iter().map(|want| {
                let (need, permits) = need(want.mode);
                format!("{}:{need}:{}", hex(&want.lock), permits.map_or(String::new(), |of| of.to_string()))
            });
            let mut order: Vec<_> = (0..ask.wants.len()).collect();
            order.sort_by_key(|part| &ask.wants[*part].lock);
            let order: Vec<_> = order.into_iter().map(|part| (part + 1).to_string()).collect();
            let delay = ask.delay.map_or("NULL".to_owned(), |delay| delay.as_ms().to_string());
            let value = ask.value.as_ref().map_or("NULL", |_| "'a value'");
            let (wants, order) = (wants.collect::<Vec<_>>().join(","), order.join(","));
            let what = format!("'{wants}', '{order}', {waits}, {may_queue}, {delay}, {value}");
            self.row(format!("CALL palisade_request({id}, 0, {request}, {what})")).await
        };
        let theirs = match text(&row, 0).as_str() {
            "granted" => Said::Granted,
            "queued" => Said::Queued,
            "busy" => Said::Busy,
            _ => refused_in(&text(&row, 2)),
        };
        (said(&self.machine.apply(Command::Acquire(ask)).answer), theirs)
    }

    /// Whether a request waits or is held.
    fn is_live(&self, ask: &Acquire) -> bool {
        // A repeat changes nothing, so a copy can be asked.
        let mut copy = self.machine.clone();
        let cancel = Command::Cancel {
            caller: ask.caller.session.into(),
            waiting: Waiting::Request(ask.caller.number.expect("it has one")),
        };
        let before = copy.lock(&ask.wants[0].lock).map_or(0, |lock| lock.waiter_count());
        match copy.apply(cancel).answer {
            Err(Refusal::AlreadyGranted { .. }) => true,
            Ok(_) => copy.lock(&ask.wants[0].lock).map_or(0, |lock| lock.waiter_count()) < before,
            Err(_) => false,
        }
    }

    async fn cancel(&mut self, caller: Caller) -> (Said, Said) {
        let request = caller.number.expect("it has one");
        let id = self.store_session(caller.session);
        let row = self.row(format!("CALL palisade_cancel({id}, {})", request.get())).await;
        let theirs = match text(&row, 0).as_str() {
            "gone" => Said::Done,
            "granted" => Said::Granted,
            _ => refused_in(&text(&row, 2)),
        };
        let cancel = Command::Cancel { caller: caller.session.into(), waiting: Waiting::Request(request) };
        let ours = match self.machine.apply(cancel).answer {
            Err(Refusal::AlreadyGranted { .. }) => Said::Granted,
            // Nothing waits, and nothing will.
            Err(Refusal::NotWaiting) => Said::Done,
            answer => said(&answer),
        };
        (ours, theirs)
    }

    /// Every lock is held and wanted by the same, in the same order; tokens rise.
    async fn compare(&mut self) {
        for lock in 0..LOCKS {
            let lock = self.lock(lock);
            let sql = format!(
                "SELECT state, session, need, token, permits, value FROM palisade_locks WHERE name = '{lock}' \
                 ORDER BY state = 'waiting', token, arrival"
            );
            let rows: Vec<Row> = self.store.query(sql).await.expect("it answers");
            let theirs: Vec<_> = rows
                .iter()
                .map(|row| {
                    let state = text(row, 0);
                    let session = (state != "withheld").then(|| number(row, 1).expect("a session"));
                    (state, session, number(row, 2).expect("a need"), number(row, 4))
                })
                .collect();
            let mut ours = Vec::new();
            let mut tokens = Vec::new();
            if let Some(view) = self.machine.lock(&lock) {
                let mut holders: Vec<_> = view.holders().collect();
                holders.sort_by_key(|grant| grant.token);
                for grant in holders {
                    let (need, of) = need(grant.mode);
                    let (state, session) = match grant.state {
                        GrantState::Held { session, .. } => ("held", Some(self.store_session(session))),
                        GrantState::Withheld => ("withheld", None),
                    };
                    ours.push((state.to_owned(), session, need, of));
                    tokens.push(grant.token);
                }
                for waiter in view.waiters() {
                    let (need, of) = need(waiter.mode);
                    ours.push(("waiting".to_owned(), Some(self.store_session(waiter.session)), need, of));
                }
                let held = rows.iter().filter(|row| text(row, 0) == "held");
                let value = held.filter_map(|row| row.get::<Option<Vec<u8>>, _>(5)?).next();
                assert_eq!(view.value().map(Value::as_bytes), value.as_deref(), "what {lock} shows");
            }
            assert_eq!(ours, theirs, "{lock}");
            for (token, row) in tokens.into_iter().zip(&rows) {
                let (theirs, key) = (number(row, 3).expect("a token"), (lock.clone(), token));
                match self.tokens.get(&key) {
                    Some(known) => assert_eq!(*known, theirs, "a token has changed"),
                    None => {
                        let highest = self.highest.entry(lock.clone()).or_default();
                        assert!(theirs > *highest, "{lock}: {theirs} came after {highest}");
                        *highest = theirs;
                        self.tokens.insert(key, theirs);
                    }
                }
            }
        }
    }
}

#[test]
fn the_procedures_do_what_the_rules_do() {
    let scene = Scene::new();
    check_without_bound(async {
        let store = std::cell::RefCell::new(scene.store().await);
        let cases = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(40);
        let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
        let mut runner = proptest::test_runner::TestRunner::new(config);
        let case = std::cell::Cell::new(0);
        let result = runner.run(&vec(step(), 1..80), |steps| {
            case.set(case.get() + 1);
            // After a failure, smaller cases are tried: they find the connection as it is.
            let mut store = store.borrow_mut();
            let mut pair = Pair::new(&mut store, case.get());
            let run = async {
                pair.open().await;
                pair.open().await;
                for step in steps {
                    pair.take(step).await;
                }
                for (_, id) in pair.sessions.clone() {
                    pair.call(format!("CALL palisade_close({id})")).await;
                }
                for table in ["lock", "claim"] {
                    let over = "withheld_until = UTC_TIMESTAMP(6) WHERE withheld_until IS NOT NULL";
                    pair.call(format!("UPDATE palisade_{table} SET {over}")).await;
                }
                pair.sweep().await;
            };
            tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(run));
            Ok(())
        });
        if let Err(error) = result {
            panic!("{error}");
        }
    });
}
