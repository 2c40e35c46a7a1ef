//! One line after the other: when one breaks, the next takes up what lasts.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::rc::Rc;
use std::time::Duration;

use palisade_core::{Acquire, LockName, RequestNo, SessionEnd, SessionId, Token};
use tokio::task::spawn_local;
use tokio::time::{Instant, sleep, timeout};
use tokio_postgres::types::Type;

use super::error::Trouble;
use super::lasting::{Lasting, Stray};
use super::line::{CALL, Line, Said, big};
use super::{Config, dial, pooler, schema};
use crate::engine::lines::{Lines, SHORTEST_WAIT, jittered, patience};
use crate::engine::{Failure, WakeUp};

/// How often a wait is looked after that is told when its turn comes, and one that is not.
const LOOK: Duration = Duration::from_millis(700);
const POLL: Duration = Duration::from_millis(25);
/// How often sessions that nobody asks for are ended, and watches are kept up.
const SWEEP: Duration = Duration::from_secs(5);
const SWEEP_WATCHED: Duration = Duration::from_millis(500);
/// How many steps of each kind one sweep takes at most, and how many rows `palisade.clean` looks at in one.
pub(super) const SWEEP_STEPS: usize = 256;
const CLEAN_ROWS: i32 = 1000;
/// How long a watch lasts without being kept up.
const WATCH_MS: i64 = 30_000;

pub(super) struct Connector {
    config: Config,
    address: String,
    /// Where this client, and nobody else, listens.
    pub(super) channel: String,
    lasting: Rc<Lasting>,
    lines: Lines<Line, Trouble>,
    epoch: Cell<i32>,
    /// Found out with the first line.
    wake_up: Cell<WakeUp>,
    life: RefCell<Option<Life>>,
}

/// Which life of the data this is, and how far its log has certainly come.
struct Life {
    cluster: String,
    flushed: i64,
}

impl Connector {
    pub(super) fn new(config: Config, lasting: Rc<Lasting>) -> Connector {
        let random = RandomState::new();
        Connector {
            address: config.address(),
            config,
            channel: format!("palisade_{:016x}{:016x}", random.hash_one(0), random.hash_one(1)),
            lasting,
            lines: Lines::new(),
            epoch: Cell::new(0),
            wake_up: Cell::new(WakeUp::Pushed),
            life: RefCell::new(None),
        }
    }

    pub(super) fn wake_up(&self) -> WakeUp {
        self.wake_up.get()
    }

    /// The line, if there is one.
    pub(super) fn up(&self) -> Option<Rc<Line>> {
        self.lines.up()
    }

    /// The line, or why there is none.
    pub(super) async fn line(&self) -> Result<Rc<Line>, Failure> {
        self.lines.line(|why| why.failure(&self.address, false)).await
    }

    pub(super) fn patience(&self, ttl: Option<Duration>) -> Duration {
        patience(ttl, CALL)
    }

    /// The log on the server's disk has certainly come so far.
    pub(super) fn note_flushed(&self, flushed: i64) {
        if let Some(life) = &mut *self.life.borrow_mut() {
            life.flushed = life.flushed.max(flushed);
        }
    }

    /// Keeps a line, for ever.
    pub(super) async fn run(self: Rc<Self>) {
        let failure = |why: &Trouble| why.failure(&self.address, true);
        self.lines.keep("PostgreSQL", &self.lasting, async || self.keep_line().await, failure).await;
    }

    /// Makes a line and keeps it until it breaks; an error says why there was none.
    async fn keep_line(self: &Rc<Self>) -> Result<Trouble, Trouble> {
        let silent = |_| Trouble::passing(format!("does not answer; waited {} ms", CALL.as_millis()));
        let lasting = self.lasting.clone();
        let dialled = dial::dial(&self.config, move |said| lasting.heed(said));
        let dialled = timeout(CALL, dialled).await.map_err(silent)??;
        let mut driving = dialled.driving;
        self.epoch.set(self.epoch.get() + 1);
        let mut line = Line::new(dialled.client, self.address.clone(), self.epoch.get());
        let strays = tokio::select! {
            trouble = &mut driving => return Err(trouble),
            begun = timeout(CALL * 2, self.begin(&mut line, dialled.local)) => begun.map_err(silent)??,
        };
        let line = Rc::new(line);
        let looking_after = spawn_local(self.clone().look_after(line.clone(), strays));
        self.take_up(&line);
        let trouble = tokio::select! {
            trouble = &mut driving => trouble,
            trouble = line.given_up() => trouble,
        };
        line.end();
        self.lines.unset();
        looking_after.abort();
        Ok(trouble)
    }

    /// Makes sure of what the line leads to, and takes up the sessions. Returns what they hold and nobody wants.
    async fn begin(&self, line: &mut Line, local: Option<std::net::SocketAddr>) -> Result<Vec<Stray>, Trouble> {
        let cluster = schema::ensure(line.client()).await?;
        let sql = "SELECT pg_is_in_recovery(), CASE WHEN pg_is_in_recovery() THEN 0 ELSE \
             (pg_current_wal_flush_lsn() - '0/0')::bigint END";
        let row = line.client().query_typed_one(sql, &[]).await?;
        if row.try_get(0)? {
            return Err(Trouble::passing(
                "it is a standby, which can grant nothing; connect to the primary".to_owned(),
            ));
        }
        self.check_life(cluster, row.try_get(1)?)?;
        if pooler::is_between(line.client(), local, &self.config).await? {
            self.wake_up.set(WakeUp::Polled);
        } else {
            self.wake_up.set(WakeUp::Pushed);
            line.prepare(&self.channel).await?;
        }
        let mut strays = Vec::new();
        for session in self.lasting.sessions() {
            strays.extend(self.attach(line, session).await?);
        }
        Ok(strays)
    }

    /// The data must be the same, and none of it may have gone back: tokens would be given again.
    fn check_life(&self, cluster: String, flushed: i64) -> Result<(), Trouble> {
        let mut life = self.life.borrow_mut();
        if let Some(life) = &*life {
            let lost = match () {
                () if life.cluster != cluster => "it has lost its data, or is another one",
                () if life.flushed > flushed => {
                    "it has gone back to an earlier state, as a standby that was promoted too \
                     early or a restored backup has"
                }
                () => "",
            };
            if !lost.is_empty() {
                return Err(Trouble::for_good(format!(
                    "{lost}: tokens that were given may be given again. Make sure that they are not (SELECT \
                     palisade.raise_tokens(above)), then start this client again"
                )));
            }
        }
        *life = Some(Life { cluster, flushed });
        Ok(())
    }

    /// Takes up a session on a new line: whatever an older one still asks is refused from now on.
    async fn attach(&self, line: &Line, session: SessionId) -> Result<Vec<Stray>, Trouble> {
        let id = big(session.get());
        let sql = "SELECT lock, number, token FROM palisade.attach($1, $2)";
        let rows = line.client().query_typed(sql, &[(&id, Type::INT8), (&line.epoch, Type::INT4)]).await?;
        if rows.is_empty() {
            self.lasting.session_ended(session, SessionEnd::Expired);
            return Ok(Vec::new());
        }
        // Why something is missing, it says itself, if it can.
        let none: Vec<i64> = Vec::new();
        let sql = "SELECT palisade.look_up($1, $2)";
        for row in line.client().query_typed(sql, &[(&id, Type::INT8), (&none, Type::INT8_ARRAY)]).await? {
            self.lasting.heed(row.try_get(0)?);
        }
        let held: BTreeMap<_, _> = rows.iter().filter_map(grant).collect();
        Ok(self.lasting.compare_held(session, &held))
    }

    /// From now on this is the line. Nothing can begin to wait between the repeats and that.
    fn take_up(self: &Rc<Self>, line: &Rc<Line>) {
        for (key, ask) in self.lasting.waits(Acquire::clone) {
            let (line, lasting) = (line.clone(), self.lasting.clone());
            spawn_local(async move {
                match line.acquire(&ask).await {
                    Ok(Said::Granted(token)) => lasting.settle(key, Ok(token)),
                    Ok(Said::Queued | Said::Busy) => {}
                    // The next line asks again.
                    Err(Failure::Unavailable(why)) if why.is_retryable => lasting.look().notify_one(),
                    Err(failure) => lasting.settle(key, Err(failure)),
                }
            });
        }
        self.lasting.note_missed();
        self.lines.set(line.clone());
    }

    /// What has to be done on a line though nobody asks for it.
    async fn look_after(self: Rc<Self>, line: Rc<Line>, strays: Vec<Stray>) {
        for Stray { session, lock, token } in strays {
            // A crash may have undone its release, or its answer was lost.
            drop(line.give_back(session, &lock, token).await);
        }
        let (mut swept_at, is_polled) = (Instant::now(), self.wake_up.get() == WakeUp::Polled);
        loop {
            let is_watched = self.keep_watches(&line, swept_at).await;
            let pause = jittered(if is_polled { POLL } else { LOOK });
            tokio::select! {
                () = sleep(pause) => {}
                () = self.lasting.look().notified() => {}
            }
            self.look(&line, is_polled).await;
            if swept_at.elapsed() >= jittered(if is_watched { SWEEP_WATCHED } else { SWEEP }) {
                swept_at = Instant::now();
                self.sweep(&line).await;
            }
        }
    }

    /// Asks what became of everything that waits; where nothing is pushed, also what else happened to its sessions.
    async fn look(&self, line: &Line, is_polled: bool) {
        let mut waiting = self.lasting.waiting();
        if is_polled {
            for session in self.lasting.sessions() {
                waiting.entry(session).or_default();
            }
        }
        for (session, numbers) in waiting {
            match line.look_up(session, &numbers).await {
                Ok(said) => said.iter().for_each(|said| self.lasting.heed(said)),
                Err(failure) => tracing::debug!(%failure, "what waits could not be looked after"),
            }
        }
    }

    /// Ends what is overdue, then removes rows of locks that are not in use, each step in a transaction of its own. A step
    /// that finds little to do is the last one; the rest is left to the next sweep.
    async fn sweep(&self, line: &Line) {
        for (step, enough) in
            [("SELECT palisade.sweep()", 1), ("SELECT removed FROM palisade.clean()", CLEAN_ROWS / 2)]
        {
            for _ in 0..SWEEP_STEPS {
                match line.row(step, &[]).await {
                    Ok(row) if row.try_get::<_, i32>(0).is_ok_and(|done| done >= enough) => {}
                    Ok(_) => break,
                    Err(failure) => {
                        tracing::debug!(%failure, "what is overdue could not be ended");
                        return;
                    }
                }
            }
        }
    }

    /// Keeps up what is watched, and ends what is watched no longer.
    async fn keep_watches(&self, line: &Line, swept_at: Instant) -> bool {
        let (gone, watched) = {
            let mut watchers = self.lasting.watchers.borrow_mut();
            (watchers.forget_closed(), watchers.prefixes())
        };
        for prefix in gone {
            drop(self.unwatch(line, &prefix).await);
        }
        if swept_at.elapsed() < SHORTEST_WAIT {
            for prefix in &watched {
                drop(self.watch(line, prefix).await);
            }
        }
        !watched.is_empty()
    }

    pub(super) async fn watch(&self, line: &Line, prefix: &str) -> Result<(), Failure> {
        let given: [super::line::Given<'_>; 3] =
            [(&self.channel, Type::TEXT), (&prefix, Type::TEXT), (&WATCH_MS, Type::INT8)];
        line.rows("SELECT palisade.watch($1, $2, $3)", &given).await.map(drop)
    }

    async fn unwatch(&self, line: &Line, prefix: &str) -> Result<(), Failure> {
        let given: [super::line::Given<'_>; 2] = [(&self.channel, Type::TEXT), (&prefix, Type::TEXT)];
        line.rows("SELECT palisade.unwatch($1, $2)", &given).await.map(drop)
    }
}

/// A grant as `palisade.attach` says it.
fn grant(row: &tokio_postgres::Row) -> Option<(Token, (LockName, Option<RequestNo>))> {
    let lock: Option<&str> = row.try_get(0).ok()?;
    let (number, token): (Option<i64>, Option<i64>) = (row.try_get(1).ok()?, row.try_get(2).ok()?);
    let number = number.and_then(|number| RequestNo::new(u64::try_from(number).ok()?).ok());
    Some((Token::new(u64::try_from(token?).ok()?).ok()?, (LockName::new(lock?).ok()?, number)))
}
