//! One client: reads its commands, has them carried out, waits where it is told to wait.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::future::ready;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use palisade_core::{Command, Refusal, SessionId, Ttl};
use tokio::time::{sleep_until, timeout};

use super::Service;
use super::audit::Audit;
use super::connections::Counted;
use super::greeting::no_auth;
use super::info;
use super::line::Line;
use super::meaning::Meaning;
use super::state::{Caller, Form, Look, NotLeading, Reader, granted, not_done, refused};
use super::transport::Transport;
use super::wait::{Grant, Suitor, command};
use super::who::Who;
use crate::access::{User, Verb};
use crate::resp::frame::{self, Bounds as FrameBounds};
use crate::resp::{Holding, Reply, Request, Version};
use crate::storage::disk::Disk;

/// A line is read on when the client has taken so much of what it was answered, at the latest.
const UNREAD_BEFORE_READING: usize = 1 << 20;
/// How long the answers to a client that goes, or is sent away, may take to reach it.
const FAREWELL: Duration = Duration::from_secs(2);

pub(super) struct Connection<D: Disk> {
    pub(super) service: Rc<Service<D>>,
    transport: Rc<Transport>,
    pub(super) line: Rc<Line>,
    read: RefCell<Vec<u8>>,
    /// Whether there may be more to read than was read the last time.
    has_more: Cell<bool>,
    /// Whether the client has said that it says nothing more.
    has_ended: Cell<bool>,
    /// Whether it has sent too much behind a command that waits.
    is_flooding: Cell<bool>,
    /// Whether a whole command has come.
    has_spoken: Cell<bool>,
    /// When the first byte of a command came whose last byte has not come yet.
    half_since: Cell<Option<Instant>>,
    accepted_at: Instant,
    pub(super) is_over: bool,
    watched: BTreeSet<String>,
    pub(super) failed_logins: u32,
    pub(super) counted: Counted,
}

/// Why a client is served no longer.
enum Leave {
    /// It has gone, or is to go; what it asked before is answered.
    Gone,
    /// It is cut off.
    Cut(&'static str),
}

impl From<io::Error> for Leave {
    fn from(_: io::Error) -> Leave {
        Leave::Cut("the connection has failed")
    }
}

impl<D: Disk> Connection<D> {
    pub(super) fn new(
        service: Rc<Service<D>>,
        transport: Transport,
        audit: Arc<Audit>,
        who: Who,
        counted: Counted,
    ) -> Connection<D> {
        let transport = Rc::new(transport);
        let account = service.unread.account(who.user().map(User::name));
        let line = Rc::new(Line::new(transport.clone(), service.bounds.unread_bytes, who, audit, &account));
        service.note(&line);
        Connection {
            service,
            transport,
            line,
            read: RefCell::default(),
            // What came with the last of the handshake is here already.
            has_more: Cell::new(true),
            has_ended: Cell::new(false),
            is_flooding: Cell::new(false),
            has_spoken: Cell::new(false),
            half_since: Cell::new(None),
            accepted_at: Instant::now(),
            is_over: false,
            watched: BTreeSet::new(),
            failed_logins: 0,
            counted,
        }
    }

    /// Serves the client until it goes, or is cut off.
    pub(super) async fn serve(mut self) {
        match self.converse().await {
            Leave::Gone => drop(timeout(FAREWELL, self.take_leave()).await),
            Leave::Cut(why) => tracing::debug!(peer = self.line.audit().peer(), why, "a client is cut off"),
        }
        self.service.wake.notify_one();
    }

    async fn converse(&mut self) -> Leave {
        loop {
            let has_room = self.carry_out().await;
            if self.is_over || (has_room && self.has_ended.get()) {
                return Leave::Gone;
            }
            // Without room nothing is read: then an answer that goes out is what makes some.
            self.line.set_awaited(!has_room);
            if let Err(leave) = self.attend(has_room).await {
                return leave;
            }
        }
    }

    /// Whether the client may ask more before it has had its answers.
    fn may_carry_out(&self) -> bool {
        let most = UNREAD_BEFORE_READING.min(self.service.bounds.unread_bytes);
        self.line.open_questions() < self.service.bounds.unanswered && self.line.kept() <= most
    }

    /// Waits until the client has said something, or could be written to; does it, or says that it is over.
    async fn attend(&self, may_read: bool) -> Result<(), Leave> {
        if self.line.is_closed() {
            return Err(Leave::Cut("it does not read what it is told"));
        }
        if self.service.is_closing.get() {
            return Err(Leave::Gone);
        }
        let (overdue_at, why) = self.overdue().unzip();
        tokio::select! {
            () = ready(()), if may_read && self.has_more.get() => self.fill()?,
            readable = self.transport.readable(), if may_read && !self.has_more.get() => {
                readable?;
                self.fill()?;
            }
            writable = self.transport.writable(), if self.line.is_behind() => {
                writable?;
                self.line.flush();
            }
            () = self.line.behind.notified() => {}
            () = self.counted.displaced() => {
                let why = "it has said nothing for too long, and another client needs the place";
                self.refuse(Reply::Error("LIMIT", format!("{why}; connect again, and log in at once")));
                self.line.flush();
                return Err(Leave::Cut(why));
            }
            () = sleep_until(overdue_at.unwrap_or_else(Instant::now).into()), if overdue_at.is_some() => {
                return Err(self.cut(why.unwrap_or_default()));
            }
        }
        Ok(())
    }

    /// Until when the client must have done what it has begun.
    fn overdue(&self) -> Option<(Instant, &'static str)> {
        let bounds = &self.service.bounds;
        let stranger = matches!(self.line.who(), Who::Stranger)
            .then(|| (self.accepted_at + bounds.greeting, "it did not say in time who it is"));
        let half = self.half_since.get().map(|at| (at + bounds.command, "half a command came, and then nothing"));
        let stalled = self.line.stalled_at().map(|at| (at + bounds.stall, "it does not read what it is told"));
        [stranger, half, stalled].into_iter().flatten().min_by_key(|(at, _)| *at)
    }

    fn cut(&self, why: &'static str) -> Leave {
        self.refuse(Reply::Error("TIMEOUT", format!("{why}; the connection is closed")));
        self.line.flush();
        Leave::Cut(why)
    }

    /// What was asked is answered, and the client has time to read it: closing with something unread would take the
    /// answers away from it.
    async fn take_leave(&self) {
        self.line.set_awaited(true);
        while !self.line.is_closed() && (self.line.open_questions() > 0 || self.line.is_behind()) {
            tokio::select! {
                _ = self.transport.writable(), if self.line.is_behind() => self.line.flush(),
                () = self.line.behind.notified() => {}
            }
        }
        self.transport.shut();
        let mut discarded = vec![0; 16 << 10];
        loop {
            match self.transport.try_read(&mut discarded) {
                Ok(0) => return,
                Ok(_) => tokio::task::yield_now().await,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if self.transport.readable().await.is_err() {
                        return;
                    }
                }
                Err(_) => return,
            }
        }
    }

    /// Reads what has arrived, but not so much that the others would have to wait.
    fn fill(&self) -> Result<(), Leave> {
        const STEPS: usize = 4;
        let (mut read, mut came) = (self.read.borrow_mut(), self.service.came.borrow_mut());
        self.has_more.set(false);
        for _ in 0..STEPS {
            match self.transport.try_read(&mut came[..]) {
                Ok(0) => {
                    self.has_ended.set(true);
                    return Ok(());
                }
                Ok(length) => read.extend_from_slice(&came[..length]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
        self.has_more.set(true);
        Ok(())
    }

    /// Carries out the commands that have arrived whole. Returns whether there is room for more.
    async fn carry_out(&mut self) -> bool {
        let mut at = 0;
        while !self.is_over && !self.line.is_closed() && self.may_carry_out() {
            match self.next_request(&mut at) {
                Next::Request(request) => self.request(request).await,
                Next::Refused(reply) => self.refuse(reply),
                Next::Nothing => break,
            }
        }
        let mut read = self.read.borrow_mut();
        read.drain(..at);
        if read.is_empty() {
            // A large command must not be paid for as long as the connection lasts.
            read.shrink_to(64 << 10);
        }
        drop(read);
        self.may_carry_out()
    }

    /// The next command that has arrived whole, and where the one after it begins.
    fn next_request(&mut self, at: &mut usize) -> Next {
        let read = self.read.borrow();
        let bounds = self.frame_bounds();
        let words = match frame::words(&read[*at..], bounds) {
            Ok(Some(words)) => words,
            Ok(None) => {
                if read.len() > *at && self.half_since.get().is_none() {
                    self.half_since.set(Some(Instant::now()));
                }
                return Next::Nothing;
            }
            Err(bad) => {
                self.is_over = true;
                return Next::Refused(Reply::Error("PROTOCOL", bad.to_string()));
            }
        };
        let parts: Vec<&[u8]> = words.at.iter().map(|word| &read[*at + word.start..*at + word.end]).collect();
        *at += words.end;
        self.half_since.set(None);
        if !self.has_spoken.replace(true) && matches!(self.line.who(), Who::Anyone) {
            // Nobody has to say more than that where there are no users, and nobody is refused.
            let _ = self.counted.be_known(None);
        }
        match Request::parse(&parts) {
            Ok(request) => Next::Request(request),
            Err(_) if !self.may_be_told(parts.first()) => Next::Refused(no_auth()),
            Err(bad) => Next::Refused(Reply::Error("BADARG", bad.to_string())),
        }
    }

    fn frame_bounds(&self) -> FrameBounds {
        if matches!(self.line.who(), Who::Stranger) {
            return FrameBounds { words: 16, bytes: 4096 };
        }
        FrameBounds { words: self.service.bounds.command_words, bytes: self.service.bounds.command_bytes }
    }

    fn refuse(&self, reply: Reply) {
        let question = self.line.ask();
        self.reply(question, &reply);
    }

    fn reply(&self, question: u64, reply: &Reply) {
        self.service.state.borrow_mut().reply(&self.line, question, reply);
        self.service.wake.notify_one();
    }

    fn submit(&self, question: u64, command: Command, form: Form) {
        let caller = Caller::Line(self.line.clone(), question, form);
        self.service.state.borrow_mut().submit(command, caller);
        self.service.wake.notify_one();
    }

    async fn request(&mut self, request: Request) {
        if let Err(reply) = self.permit(&request) {
            return self.refuse(reply);
        }
        let question = self.line.ask();
        let request = match Meaning::of(request, |said| self.label(said)) {
            Meaning::Change(command) => return self.change(question, command),
            Meaning::Look(look) => return self.look(question, look),
            Meaning::Other(request) => request,
        };
        match request {
            Request::Acquire(holding) => self.acquire(question, holding).await,
            Request::Auth { user, secret } => {
                let reply = self.log_in(user.as_deref().unwrap_or_default(), &secret).await;
                self.reply(question, &reply.err().unwrap_or(Reply::Simple("OK")));
            }
            Request::Hello { version, auth } => {
                let reply = self.hello(version, auth).await;
                self.reply(question, &reply);
            }
            other => self.at_once(question, other),
        }
    }

    fn change(&self, question: u64, command: Command) {
        if matches!(command, Command::OpenSession { .. })
            && let Err(reply) = self.begin_session()
        {
            return self.reply(question, &reply);
        }
        let form = Form::of(&command);
        self.submit(question, command, form);
    }

    /// What is answered without the log.
    fn at_once(&mut self, question: u64, request: Request) {
        let reply = match request {
            Request::KeepAlive { sessions } => self.keep_all_alive(sessions),
            Request::Attach { session } => self.attach(session),
            Request::Watch { prefix } => self.watch(prefix),
            Request::Unwatch { prefix } => {
                self.watched.remove(&prefix);
                self.service.state.borrow_mut().unwatch(&self.line, &prefix);
                Reply::Simple("OK")
            }
            Request::Detail { is_on } => {
                self.line.set_detailed(is_on);
                Reply::Simple("OK")
            }
            Request::ClientId => Reply::Number(self.counted.id()),
            Request::ClientName => Reply::Nil,
            Request::Ping { message: None } => Reply::Simple("PONG"),
            Request::Ping { message: Some(message) } => Reply::Bytes(message),
            Request::Quit => {
                self.is_over = true;
                Reply::Simple("OK")
            }
            Request::ListCommands => usages(""),
            Request::Help => usages("LOCK "),
            Request::Info => self.info(),
            _ => Reply::Simple("OK"),
        };
        self.reply(question, &reply);
        if self.is_over {
            self.line.flush();
        }
    }

    fn keep_all_alive(&self, sessions: Vec<SessionId>) -> Reply {
        let mut state = self.service.state.borrow_mut();
        let mut kept = |session| Ok(Reply::Number(state.keep_alive(session)?.map_or(0, Ttl::as_ms)));
        let kept: Result<_, NotLeading> = sessions.into_iter().map(&mut kept).collect();
        kept.map_or_else(Reply::from, Reply::Array)
    }

    /// From now on this line is told of what ends. What has ended while nobody was told is not among what is held.
    fn attach(&self, session: SessionId) -> Reply {
        let mut state = self.service.state.borrow_mut();
        match state.keep_alive(session) {
            Ok(Some(ttl)) => {
                state.attach(session, &self.line);
                let held = state.held(session).into_iter().map(|token| Reply::Number(token.get()));
                Reply::Map(vec![
                    ("session", Reply::Number(session.get())),
                    ("ttl_ms", Reply::Number(ttl.as_ms())),
                    ("held", Reply::Array(held.collect())),
                ])
            }
            Ok(None) => refused(&Refusal::NoSuchSession { session }, &self.line),
            Err(not_leading) => not_leading.into(),
        }
    }

    fn watch(&mut self, prefix: String) -> Reply {
        if self.line.version() == Version::Two {
            return Reply::Error(
                "BADARG",
                "LOCK WATCH needs version 3 of the protocol: say HELLO 3 first".to_owned(),
            );
        }
        let most = self.service.bounds.watches;
        if self.watched.len() >= most && !self.watched.contains(&prefix) {
            return Reply::Error("LIMIT", format!("one connection watches at most {most} prefixes"));
        }
        match self.service.state.borrow_mut().watch(&self.line, prefix.clone()) {
            Ok(()) => {
                self.watched.insert(prefix);
                Reply::Simple("OK")
            }
            Err(not_leading) => not_leading.into(),
        }
    }

    async fn hello(&mut self, version: Option<u64>, auth: Option<(Vec<u8>, Vec<u8>)>) -> Reply {
        if version.is_some_and(|version| !matches!(version, 2 | 3)) {
            return Reply::Error("NOPROTO", "versions 2 and 3 of the protocol are spoken here".to_owned());
        }
        if let Some((user, secret)) = auth
            && let Err(reply) = self.log_in(&user, &secret).await
        {
            return reply;
        }
        if matches!(self.line.who(), Who::Stranger) {
            return no_auth();
        }
        match version {
            Some(2) => self.line.set_version(Version::Two),
            Some(3) => self.line.set_version(Version::Three),
            _ => {}
        }
        let proto = if self.line.version() == Version::Three { 3 } else { 2 };
        Reply::Map(vec![
            ("server", Reply::Text("palisade")),
            ("version", Reply::Text(env!("CARGO_PKG_VERSION"))),
            ("proto", Reply::Number(proto)),
            ("mode", Reply::Text("standalone")),
            ("role", Reply::Text("master")),
        ])
    }

    fn info(&self) -> Reply {
        let who = self.line.who();
        let may_see_counts = who.user().is_none_or(|user| user.may_somewhere(Verb::Observe));
        Reply::text(info::text(may_see_counts.then(|| self.service.state.borrow().measures()).as_ref()))
    }

    fn look(&self, question: u64, look: Look) {
        let reader = Reader::Line(self.line.clone(), question, look);
        self.service.state.borrow_mut().replica.read(reader);
        self.service.wake.notify_one();
    }

    async fn acquire(&mut self, question: u64, holding: Holding) {
        let waits = holding.waits();
        match holding.by {
            Ok(session) if !waits || holding.is_async => {
                if holding.is_async && self.line.version() == Version::Two {
                    let why = "ASYNC needs version 3 of the protocol: say HELLO 3 first";
                    return self.reply(question, &Reply::Error("BADARG", why.to_owned()));
                }
                let wait = match self.service.may_wait(&self.line.who(), &holding) {
                    Ok(wait) => wait,
                    Err(why) => return self.reply(question, &not_done(&why, &self.line)),
                };
                let form = Form::Acquired { session, number: holding.number, is_async: holding.is_async, wait };
                self.submit(question, command(&holding, session, waits), form);
            }
            _ => {
                let reply = self.wait_for(&holding).await;
                self.reply(question, &reply);
                self.is_over |= self.is_flooding.get();
            }
        }
    }

    /// Waits as long as it is told to, or until the client has gone; with a session that is made for it, if need be.
    async fn wait_for(&self, holding: &Holding) -> Reply {
        let wait = match self.service.may_wait(&self.line.who(), holding) {
            Ok(wait) => wait,
            Err(why) => return not_done(&why, &self.line),
        };
        if holding.by.is_err()
            && let Err(reply) = self.begin_session()
        {
            return reply;
        }
        let answered = || self.service.state.borrow_mut().owners.answered(&self.user_name());
        let origin = self.line.origin();
        let suitor = Suitor { service: &self.service, origin: &origin, holding };
        match suitor.acquire(self.label(None), wait, answered, self.gone()).await {
            Ok(Some(Grant { token, session, ttl_ms })) => granted(session, token, ttl_ms),
            Ok(None) => self.not_granted(),
            Err(refusal) => refused(&refusal, &self.line),
        }
    }

    fn not_granted(&self) -> Reply {
        if self.service.is_closing.get() {
            let why = "the service is stopping: the wait was ended and nothing is held; ask again when it is back";
            return Reply::Error("CLOSING", why.to_owned());
        }
        Reply::Nil
    }

    /// Until the client has gone, or is to go. What it sends meanwhile is carried out later, unless its connection is
    /// reset. It is always read on, up to a bound: the end of a connection comes behind everything that was sent on it.
    async fn gone(&self) {
        loop {
            let most = self.service.bounds.command_bytes;
            if self.read.borrow().len() >= most {
                let why =
                    format!("more than {most} bytes came behind a command that waits; the connection is closed");
                self.refuse(Reply::Error("LIMIT", why));
                return self.is_flooding.set(true);
            }
            tokio::select! {
                attended = self.attend(true) => {
                    if attended.is_err() || self.has_ended.get() {
                        return;
                    }
                }
                () = self.transport.reset() => return self.line.close(),
            }
        }
    }
}

/// How commands are used whose names begin so.
fn usages(beginning: &str) -> Reply {
    let found = crate::resp::USAGES.iter().filter(|(name, _)| name.starts_with(beginning));
    Reply::Array(found.map(|(_, usage)| Reply::Text(usage)).collect())
}

/// What has arrived on a line.
enum Next {
    Request(Request),
    Refused(Reply),
    Nothing,
}
