//! One client: reads its commands, has them carried out, waits where it is told to wait.

use std::io;
use std::rc::Rc;
use std::time::Duration;

use palisade_core::{
    Acquire, Answer, Caller as Requester, Command, Departure, Label, Patience, Reentry, Refusal, SessionId, Ticket,
    Token, Ttl, Waiting,
};
use tokio::net::TcpStream;
use tokio::sync::oneshot;

use super::Service;
use super::line::Line;
use super::state::{Caller, Form, Look, NotLeading, Reader, granted, refused};
use crate::resp::frame::{self, Bounds};
use crate::resp::{Holding, Reply, Request, Version};
use crate::storage::disk::Disk;

/// So many answers may be awaited on one line before it is read on.
const OPEN_QUESTIONS: usize = 4096;

pub(super) struct Connection<D: Disk> {
    service: Rc<Service<D>>,
    stream: Rc<TcpStream>,
    line: Rc<Line>,
    peer: String,
    read: Vec<u8>,
    is_over: bool,
}

impl<D: Disk> Connection<D> {
    pub(super) fn new(service: Rc<Service<D>>, stream: TcpStream, peer: String) -> Connection<D> {
        let stream = Rc::new(stream);
        let line = Rc::new(Line::new(stream.clone()));
        Connection { service, stream, line, peer, read: Vec::new(), is_over: false }
    }

    /// Serves the client until it goes, or is cut off.
    pub(super) async fn serve(mut self) -> io::Result<()> {
        loop {
            self.carry_out().await;
            if self.is_over || self.line.is_closed() {
                return Ok(());
            }
            let may_read = self.line.open_questions() < OPEN_QUESTIONS;
            tokio::select! {
                readable = self.stream.readable(), if may_read => {
                    readable?;
                    if !self.fill()? {
                        return Ok(());
                    }
                }
                writable = self.stream.writable(), if self.line.is_behind() => {
                    writable?;
                    self.line.flush();
                }
                () = self.line.behind.notified() => {}
            }
        }
    }

    /// Reads what has arrived; `false` when the client has gone.
    fn fill(&mut self) -> io::Result<bool> {
        const STEP: usize = 16 << 10;
        loop {
            let used = self.read.len();
            self.read.resize(used + STEP, 0);
            let read = self.stream.try_read(&mut self.read[used..]);
            self.read.truncate(used + read.as_ref().copied().unwrap_or(0));
            match read {
                Ok(0) => return Ok(false),
                Ok(STEP) => {}
                Ok(_) => return Ok(true),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(true),
                Err(error) => return Err(error),
            }
        }
    }

    /// Carries out the commands that have arrived whole.
    async fn carry_out(&mut self) {
        let mut at = 0;
        while !self.is_over && self.line.open_questions() < OPEN_QUESTIONS {
            let words = match frame::words(&self.read[at..], Bounds::default()) {
                Ok(Some(words)) => words,
                Ok(None) => break,
                Err(bad) => {
                    self.refuse(Reply::Error("PROTOCOL", bad.to_string()));
                    self.is_over = true;
                    break;
                }
            };
            let parts: Vec<&[u8]> = words.at.iter().map(|word| &self.read[at + word.start..at + word.end]).collect();
            let request = Request::parse(&parts);
            at += words.end;
            match request {
                Ok(request) => self.request(request).await,
                Err(bad) => self.refuse(Reply::Error("BADARG", bad.to_string())),
            }
        }
        self.read.drain(..at);
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
        let question = self.line.ask();
        match request {
            Request::OpenSession { ttl, label } => {
                let label = label.unwrap_or_else(|| Label::new(&self.peer));
                self.submit(question, Command::OpenSession { ttl, label }, Form::Opened { ttl });
            }
            Request::CloseSession { session } => {
                self.submit(question, Command::CloseSession { session }, Form::Plain);
            }
            Request::Acquire(holding) => self.acquire(question, holding).await,
            Request::Release { lock, token, session, number } => {
                let caller = session.map(|session| Requester { session, number });
                self.submit(question, Command::Release { caller, lock, token }, Form::Released);
            }
            Request::Cancel { session, number } => {
                let (caller, waiting) = (session.into(), Waiting::Request(number));
                self.submit(question, Command::Cancel { caller, waiting }, Form::Cancelled);
            }
            Request::Publish { session, lock, token, value } => {
                let caller = session.into();
                self.submit(question, Command::Publish { caller, lock, token, value }, Form::Plain);
            }
            Request::Break { lock, only, by, reason } => {
                let by = by.unwrap_or_else(|| Label::new(&self.peer));
                self.submit(question, Command::ForceRelease { lock, only, by, reason }, Form::Forced);
            }
            Request::Resize { lock, permits } => {
                self.submit(question, Command::Resize { lock, limit: permits }, Form::Plain);
            }
            Request::Show { lock } => self.look(question, Look::Show(lock)),
            Request::List { prefix, cursor, count } => self.look(question, Look::List { prefix, cursor, count }),
            Request::Observe { lock } => self.look(question, Look::Leader(lock)),
            other => self.at_once(question, other),
        }
    }

    /// What is answered without the log.
    fn at_once(&mut self, question: u64, request: Request) {
        let reply = match request {
            Request::KeepAlive { sessions } => self.keep_all_alive(sessions),
            Request::Attach { session } => self.attach(session),
            Request::Watch { prefix } => self.watch(prefix),
            Request::Unwatch { prefix } => {
                self.service.state.borrow_mut().unwatch(&self.line, &prefix);
                Reply::Simple("OK")
            }
            Request::Client { detail } => {
                detail.into_iter().for_each(|detail| self.line.set_detailed(detail));
                Reply::Simple("OK")
            }
            Request::Hello { version, .. } => self.hello(version),
            Request::Ping { message: None } => Reply::Simple("PONG"),
            Request::Ping { message: Some(message) } => Reply::Bytes(message),
            Request::Quit => {
                self.is_over = true;
                Reply::Simple("OK")
            }
            Request::ListCommands => {
                let usages = crate::resp::USAGES.iter().map(|(_, usage)| Reply::Text(usage));
                Reply::Array(usages.collect())
            }
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

    fn watch(&self, prefix: String) -> Reply {
        if self.line.version() == Version::Two {
            return Reply::Error(
                "BADARG",
                "LOCK WATCH needs version 3 of the protocol: say HELLO 3 first".to_owned(),
            );
        }
        match self.service.state.borrow_mut().watch(&self.line, prefix) {
            Ok(()) => Reply::Simple("OK"),
            Err(not_leading) => not_leading.into(),
        }
    }

    fn hello(&self, version: Option<u64>) -> Reply {
        match version {
            Some(2) => self.line.set_version(Version::Two),
            Some(3) => self.line.set_version(Version::Three),
            None => {}
            Some(_) => return Reply::Error("NOPROTO", "versions 2 and 3 of the protocol are spoken here".to_owned()),
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
        let state = self.service.state.borrow();
        let machine = state.replica.machine();
        Reply::text(format!(
            "# Server\r\nserver:palisade\r\nversion:{}\r\n# Locks\r\nsessions:{}\r\nlocks:{}\r\nlast_token:{}\r\n",
            env!("CARGO_PKG_VERSION"),
            machine.session_count(),
            machine.lock_count(),
            machine.last_token().map_or(0, Token::get),
        ))
    }

    fn look(&self, question: u64, look: Look) {
        let reader = Reader::Line(self.line.clone(), question, look);
        self.service.state.borrow_mut().replica.read(reader);
        self.service.wake.notify_one();
    }

    async fn acquire(&mut self, question: u64, holding: Holding) {
        let waits = holding.wait_ms.is_some_and(|ms| ms > 0) || holding.is_async;
        match holding.by {
            Ok(session) if !waits || holding.is_async => {
                if holding.is_async && self.line.version() == Version::Two {
                    let why = "ASYNC needs version 3 of the protocol: say HELLO 3 first";
                    return self.reply(question, &Reply::Error("BADARG", why.to_owned()));
                }
                let form = Form::Acquired { session, number: holding.number, is_async: holding.is_async };
                self.submit(question, command(&holding, session, waits), form);
            }
            Ok(session) => {
                let reply = match self.wait_for(&holding, session).await {
                    Ok(Some(token)) => self.service.state.borrow().granted(session, token),
                    Ok(None) => Reply::Nil,
                    Err(refusal) => refused(&refusal, &self.line),
                };
                self.reply(question, &reply);
            }
            Err(ttl) => {
                let reply = self.acquire_alone(&holding, ttl).await;
                self.reply(question, &reply);
            }
        }
    }

    /// With a session that is made for it, and ends if it is not granted.
    async fn acquire_alone(&self, holding: &Holding, ttl: Ttl) -> Reply {
        let label = Label::new(&self.peer);
        let session = match self.service.ask(Command::OpenSession { ttl, label }).await {
            Ok(Answer::Opened { session }) => session,
            Ok(other) => unreachable!("an open is not answered with {other:?}"),
            Err(refusal) => return refused(&refusal, &self.line),
        };
        let outcome = self.wait_for(holding, session).await;
        if let Ok(Some(token)) = outcome {
            // It is held for its TTL from now on, however long it has waited.
            drop(self.service.state.borrow_mut().keep_alive(session));
            return granted(session, token, ttl.as_ms());
        }
        drop(self.service.ask(Command::CloseSession { session }).await);
        match outcome {
            Ok(_) => Reply::Nil,
            Err(refusal) => refused(&refusal, &self.line),
        }
    }

    /// Waits as long as it is told to, or until the client has gone.
    async fn wait_for(&self, holding: &Holding, session: SessionId) -> Result<Option<Token>, Refusal> {
        let wait = holding.wait_ms.filter(|ms| *ms > 0);
        let (sender, granted) = oneshot::channel();
        let command = command(holding, session, wait.is_some());
        let ticket = match self.service.ask_and_wait(command, Some(sender)).await? {
            Answer::Granted { token } => return Ok(Some(token)),
            Answer::Queued { ticket } => ticket,
            _ => return Ok(None),
        };
        let outcome = tokio::select! {
            outcome = granted => outcome.ok(),
            () = tokio::time::sleep(Duration::from_millis(wait.unwrap_or(0))) => None,
            () = self.gone() => None,
            () = self.keep_alive(session, holding.by.err()) => None,
        };
        match outcome {
            Some(Ok(token)) => Ok(Some(token)),
            Some(Err(Departure::Refused(refusal))) => Err(refusal),
            Some(Err(Departure::SessionEnded(_))) => Err(Refusal::NoSuchSession { session }),
            Some(Err(Departure::Cancelled)) => Ok(None),
            None => self.give_up(session, ticket).await,
        }
    }

    /// A session that was made for a wait lives as long as the wait.
    async fn keep_alive(&self, session: SessionId, ttl: Option<Ttl>) {
        let Some(ttl) = ttl else { return std::future::pending().await };
        loop {
            tokio::time::sleep(Duration::from_millis(ttl.as_ms()) / 3).await;
            // One that does not lead any more has nothing to keep alive.
            drop(self.service.state.borrow_mut().keep_alive(session));
        }
    }

    async fn give_up(&self, session: SessionId, ticket: Ticket) -> Result<Option<Token>, Refusal> {
        let cancel = Command::Cancel { caller: session.into(), waiting: Waiting::Ticket(ticket) };
        match self.service.ask(cancel).await {
            Err(Refusal::AlreadyGranted { token }) => Ok(Some(token)),
            Ok(_) | Err(Refusal::NotWaiting) => Ok(None),
            Err(refusal) => Err(refusal),
        }
    }

    /// Until the client has closed its line. What it sends meanwhile is left to be read later.
    async fn gone(&self) {
        loop {
            if self.stream.readable().await.is_err() {
                return;
            }
            match self.stream.peek(&mut [0]).await {
                Ok(0) | Err(_) => return,
                // It is there, and has said more: look again from time to time.
                Ok(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
    }
}

fn command(holding: &Holding, session: SessionId, waits: bool) -> Command {
    Command::Acquire(Acquire {
        caller: Requester { session, number: holding.number },
        wants: holding.wants.clone(),
        patience: if waits { Patience::Wait } else { Patience::Try },
        reentry: Reentry::Queue,
        delay: holding.delay,
        value: holding.value.clone(),
    })
}
