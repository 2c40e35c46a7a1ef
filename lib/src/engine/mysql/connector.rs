//! One line after the other: when one breaks, the next takes up what lasts.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Row};
use palisade_core::{LockName, RequestNo, SessionEnd, SessionId, Token};
use tokio::task::spawn_local;
use tokio::time::timeout;

use super::error::Trouble;
use super::lasting::{Lasting, Stray};
use super::line::{CALL, Line, Said, dial, no_answer};
use super::poll::Poll;
use super::sql::{number, text};
use super::{Config, schema, tls};
use crate::engine::Failure;
use crate::engine::lines::{Lines, patience};

/// How long it may take to install everything, which a busy server does in its own time.
const INSTALLING: Duration = Duration::from_secs(60);

pub(super) struct Connector {
    config: Config,
    address: String,
    lasting: Rc<Lasting>,
    lines: Lines<Line, Trouble>,
    epoch: Cell<i32>,
    /// Which life of the data this is.
    cluster: RefCell<Option<String>>,
}

impl Connector {
    pub(super) fn new(config: Config, lasting: Rc<Lasting>) -> Connector {
        Connector {
            address: config.address(),
            config,
            lasting,
            lines: Lines::new(),
            epoch: Cell::new(0),
            cluster: RefCell::new(None),
        }
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

    /// Keeps a line, for ever.
    pub(super) async fn run(self: Rc<Self>) {
        let failure = |why: &Trouble| why.failure(&self.address, true);
        self.lines.keep("MySQL", &self.lasting, async || self.keep_line().await, failure).await;
    }

    /// Makes a line and keeps it until it breaks; an error says why there was none.
    async fn keep_line(self: &Rc<Self>) -> Result<Trouble, Trouble> {
        let opts = tls::opts(&self.config)?;
        let mut conn = within(CALL, async { Ok(dial(&opts).await?) }).await?;
        self.epoch.set(self.epoch.get() + 1);
        let cluster = match within(CALL, recognise(&mut conn)).await? {
            Some(cluster) => cluster,
            None => within(INSTALLING, schema::ensure(&mut conn)).await?,
        };
        let strays = within(CALL * 2, self.begin(&mut conn, cluster)).await?;
        let line = Line::new(conn, opts, self.config.connections, self.address.clone(), self.epoch.get());
        let polling = spawn_local(Poll::new(line.clone(), self.lasting.clone()).run(strays));
        self.take_up(&line);
        let trouble = line.ended().await;
        self.lines.unset();
        polling.abort();
        Ok(trouble)
    }

    /// Makes sure that the data are the same, and takes up the sessions. Returns what they hold and nobody wants.
    async fn begin(&self, conn: &mut Conn, cluster: String) -> Result<Vec<Stray>, Trouble> {
        match &mut *self.cluster.borrow_mut() {
            Some(known) if *known != cluster => return Err(gone_back("it has lost its data, or is another one")),
            known => *known = Some(cluster),
        }
        if self.lasting.of_all.last_event.get().is_some() {
            // Who watches is told that something may be missing, and goes on from here.
            self.lasting.of_all.last_event.set(conn.query_first("SELECT events FROM palisade_state").await?);
        }
        let mut strays = Vec::new();
        for session in self.lasting.sessions() {
            strays.extend(self.attach(conn, session).await?);
        }
        Ok(strays)
    }

    /// Takes up a session on a new line: whatever an older one still asks is refused from now on.
    async fn attach(&self, conn: &mut Conn, session: SessionId) -> Result<Vec<Stray>, Trouble> {
        let rows: Vec<Row> =
            conn.query(format!("CALL palisade_attach({}, {})", session.get(), self.epoch.get())).await?;
        let Some(kept) = rows.first().map(|row| number(row, 0).unwrap_or(0)) else {
            self.lasting.session_ended(session, SessionEnd::Expired);
            return Ok(Vec::new());
        };
        if !self.lasting.note_kept(session, kept) {
            return Err(gone_back(
                "it has gone back to an earlier state, as a replica that was promoted too early or a restored backup has",
            ));
        }
        // Why something is missing, it says itself, if it can.
        let sql = format!("SELECT id, said FROM palisade_notice WHERE session = {} ORDER BY id", session.get());
        let notices: Vec<Row> = conn.query(sql).await?;
        for notice in &notices {
            self.lasting.heed(&text(notice, 1).unwrap_or_default());
        }
        if let Some(last) = notices.last().and_then(|notice| number(notice, 0)) {
            conn.query_drop(format!("CALL palisade_heard({}, {last})", session.get())).await?;
        }
        let held: BTreeMap<_, _> = rows.iter().filter_map(grant).collect();
        Ok(self.lasting.compare_held(session, &held))
    }

    /// From now on this is the line. Nothing can begin to wait between the repeats and that.
    fn take_up(self: &Rc<Self>, line: &Rc<Line>) {
        for (key, ask) in self.lasting.asks() {
            let (line, lasting) = (line.clone(), self.lasting.clone());
            lasting.note_pace(key, None);
            spawn_local(async move {
                match line.acquire(&ask).await {
                    Ok(Said::Granted(token)) => lasting.settle(key, Ok(token)),
                    Ok(Said::Queued(_) | Said::Busy) => lasting.queued(key, 0),
                    // Whether it waits is found out by asking for it.
                    Err(Failure::Unavailable(why)) if why.is_retryable => lasting.queued(key, 0),
                    Err(failure) => lasting.settle(key, Err(failure)),
                }
            });
        }
        self.lasting.note_missed();
        self.lines.set(line.clone());
    }
}

async fn within<T>(patience: Duration, doing: impl Future<Output = Result<T, Trouble>>) -> Result<T, Trouble> {
    timeout(patience, doing).await.unwrap_or_else(|_| Err(no_answer(patience)))
}

/// Which life of the data a server has; `None` if something is still to be installed.
async fn recognise(conn: &mut Conn) -> Result<Option<String>, Trouble> {
    let is_read_only: Option<u8> = conn.query_first("SELECT @@global.read_only").await?;
    if is_read_only == Some(1) {
        let what = "it is a replica, or read-only, and can grant nothing; connect to the primary";
        return Err(Trouble::passing(what.to_owned()));
    }
    Ok(schema::found(conn).await)
}

/// Tokens would be given again.
fn gone_back(how: &str) -> Trouble {
    Trouble::for_good(format!(
        "{how}: tokens that were given may be given again. Make sure that they are not (CALL \
         palisade_raise_tokens(above)), then start this client again"
    ))
}

/// A grant as `palisade_attach` says it.
fn grant(row: &Row) -> Option<(Token, (LockName, Option<RequestNo>))> {
    let number = |column| number(row, column);
    let request = number(2).and_then(|number| RequestNo::new(number).ok());
    Some((Token::new(number(3)?).ok()?, (LockName::new(&text(row, 1)?).ok()?, request)))
}
