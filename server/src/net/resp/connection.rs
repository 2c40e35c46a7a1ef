//! One client: reads its commands, passes them to the node, and disconnects it when it is done or misbehaves.

use std::cell::{Cell, RefCell};
use std::future::ready;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::{sleep_until, timeout};

use super::frame::{self, Bounds as FrameBounds};
use super::login::no_auth;
use super::transport::Transport;
use super::writer::ReplyWriter;
use super::{Call, CalledBy, Command, Reply, Version, cluster, command, info, redis, render, scripts};
use crate::access::Verb;
use crate::net::audit::Audit;
use crate::net::connection_limit::ConnectionPermit;
use crate::net::server::{Recipient, Server};
use crate::node::{ConnectionId, Input, Node, Principal, Refused, RequestContext, RequestId, check_cluster};
use crate::request::{ClusterRequest, Request};

/// No further command is carried out while the client has this many unread bytes.
const UNREAD_BEFORE_READING: usize = 1 << 20;
/// How long the last replies to a client may take to reach it.
const LINGER: Duration = Duration::from_secs(2);

pub(super) struct Connection {
    pub(super) server: Rc<Server>,
    pub(super) id: ConnectionId,
    transport: Rc<Transport>,
    pub(super) writer: Rc<ReplyWriter>,
    read: RefCell<Vec<u8>>,
    /// Whether there may be more to read than was read the last time.
    has_more: Cell<bool>,
    /// Whether the client has closed its side.
    has_ended: Cell<bool>,
    /// The acquire that has to be answered before the next command is carried out.
    blocked_on: Option<u64>,
    /// Whether the next command has to wait until those before it are answered.
    is_holding: bool,
    /// The last command that reads how a lock is held. It must not see what the commands behind it do.
    reading: Option<u64>,
    /// Whether the client has begun a transaction. There are none: its commands are refused up to its end.
    is_in_transaction: bool,
    /// Whether the node knows that the client does not wait for it any more.
    is_abandoned: bool,
    /// Whether the client has sent a complete command.
    has_sent_command: Cell<bool>,
    /// Since when a command is incomplete.
    partial_since: Cell<Option<Instant>>,
    accepted_at: Instant,
    pub(super) is_over: bool,
    pub(super) failed_logins: u32,
    /// Whether the client is connected to another node, which relays what it sends.
    pub(super) is_relayed: bool,
    pub(super) permit: ConnectionPermit,
}

/// Why a client is disconnected.
enum Disconnect {
    /// Its requests are answered first.
    Graceful,
    /// The connection is closed at once, for this reason.
    Now(&'static str),
}

impl From<io::Error> for Disconnect {
    fn from(_: io::Error) -> Disconnect {
        Disconnect::Now("the connection has failed")
    }
}

/// The next command in the read buffer.
enum Next {
    Command(Command),
    Refused(Reply),
    Nothing,
}

impl Connection {
    pub(super) fn new(
        server: Rc<Server>,
        transport: Transport,
        context: RequestContext,
        audit: Audit,
        permit: ConnectionPermit,
    ) -> Connection {
        let transport = Rc::new(transport);
        let principal = context.principal.clone();
        let account = server.unread.account(principal.user_name());
        let unread = server.bounds.unread_bytes;
        let writer = Rc::new(ReplyWriter::new(transport.clone(), unread, principal, Arc::new(audit), &account));
        let id = server.connect(context, Recipient::Resp(writer.clone()));
        Connection {
            server,
            id,
            transport,
            writer,
            read: RefCell::default(),
            // The last bytes of the TLS handshake may have brought the first of the commands.
            has_more: Cell::new(true),
            has_ended: Cell::new(false),
            blocked_on: None,
            is_holding: false,
            reading: None,
            is_in_transaction: false,
            is_abandoned: false,
            has_sent_command: Cell::new(false),
            partial_since: Cell::new(None),
            accepted_at: Instant::now(),
            is_over: false,
            failed_logins: 0,
            is_relayed: false,
            permit,
        }
    }

    /// Serves the client until it disconnects, or is disconnected.
    pub(super) async fn serve(mut self) {
        match self.run().await {
            Disconnect::Graceful => drop(timeout(LINGER, self.linger()).await),
            Disconnect::Now(why) => {
                tracing::debug!(peer = &**self.writer.audit().peer(), why, "a client is disconnected")
            }
        }
        self.server.disconnect(self.id, true);
    }

    async fn run(&mut self) -> Disconnect {
        loop {
            let has_room = self.carry_out().await;
            let is_blocked = self.blocked_on.is_some();
            if self.is_over || (has_room && !is_blocked && !self.is_holding && self.has_ended.get()) {
                return Disconnect::Graceful;
            }
            if is_blocked {
                self.check_wait();
            }
            // A reply that is sent makes room, or ends the wait.
            self.writer.set_awaited(!has_room || is_blocked || self.is_holding);
            let may_read = match is_blocked {
                true => !self.has_ended.get() && !self.is_flooding(),
                false => has_room && !self.is_holding,
            };
            if let Err(disconnect) = self.wait_for_io(may_read, is_blocked).await {
                return disconnect;
            }
        }
    }

    /// Returns whether the client has sent too much after a command that waits.
    fn is_flooding(&self) -> bool {
        self.read.borrow().len() >= self.server.bounds.command_bytes
    }

    /// Ends the wait of a client that has closed its side, or has sent too much after a command that waits. Bytes are
    /// read up to a limit meanwhile, because the end of a connection comes after all bytes.
    fn check_wait(&mut self) {
        if self.is_abandoned || !(self.has_ended.get() || self.is_flooding()) {
            return;
        }
        if self.is_flooding() {
            let most = self.server.bounds.command_bytes;
            let why = format!("more than {most} bytes came behind a command that waits; the connection is closed");
            self.refuse(Reply::Error("LIMIT", why));
        }
        self.is_abandoned = true;
        self.server.step(Input::Abandoned { connection: self.id });
    }

    /// Returns whether another command may be carried out before the client has read its replies.
    fn may_carry_out(&self) -> bool {
        let most = UNREAD_BEFORE_READING.min(self.server.bounds.unread_bytes);
        self.writer.unanswered() < self.server.bounds.unanswered && self.writer.unread() <= most
    }

    /// Waits until the socket is readable or writable, and reads or writes. Fails when the client must be disconnected.
    async fn wait_for_io(&self, may_read: bool, is_blocked: bool) -> Result<(), Disconnect> {
        if self.writer.is_closed() {
            return Err(Disconnect::Now("it does not read its replies, or its user was changed or removed"));
        }
        if self.server.is_closing() {
            return Err(Disconnect::Graceful);
        }
        let (deadline, why) = self.next_deadline().unzip();
        tokio::select! {
            () = ready(()), if may_read && self.has_more.get() => self.fill()?,
            readable = self.transport.readable(), if may_read && !self.has_more.get() => {
                readable?;
                self.fill()?;
            }
            writable = self.transport.writable(), if self.writer.has_unsent_bytes() => {
                writable?;
                self.writer.flush();
            }
            () = self.writer.changed.notified() => {}
            () = self.transport.reset(), if is_blocked => self.writer.close(),
            () = self.permit.displaced() => {
                let why = "it has said nothing for too long, and another client needs the place";
                self.refuse(Reply::Error("LIMIT", format!("{why}; connect again, and log in at once")));
                self.writer.flush();
                return Err(Disconnect::Now(why));
            }
            () = sleep_until(deadline.unwrap_or_else(Instant::now).into()), if deadline.is_some() => {
                return Err(self.time_out(why.unwrap_or_default()));
            }
        }
        Ok(())
    }

    /// Returns the client's next deadline, and the reason to disconnect it then.
    fn next_deadline(&self) -> Option<(Instant, &'static str)> {
        let bounds = &self.server.bounds;
        let login = (!self.writer.is_authenticated())
            .then(|| (self.accepted_at + bounds.greeting, "it did not log in in time"));
        let partial =
            self.partial_since.get().map(|at| (at + bounds.command, "half a command came, and then nothing"));
        let stalled = self.writer.stalled_at().map(|at| (at + bounds.stall, "it does not read its replies"));
        [login, partial, stalled].into_iter().flatten().min_by_key(|(at, _)| *at)
    }

    fn time_out(&self, why: &'static str) -> Disconnect {
        self.refuse(Reply::Error("TIMEOUT", format!("{why}; the connection is closed")));
        self.writer.flush();
        Disconnect::Now(why)
    }

    /// Answers the last requests, and gives the client time to read the replies. Closing a socket with unread bytes
    /// resets the connection, and the replies would be lost.
    async fn linger(&self) {
        self.writer.set_awaited(true);
        while !self.writer.is_closed() && (self.writer.unanswered() > 0 || self.writer.has_unsent_bytes()) {
            tokio::select! {
                _ = self.transport.writable(), if self.writer.has_unsent_bytes() => self.writer.flush(),
                () = self.writer.changed.notified() => {}
            }
        }
        self.transport.close_write();
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

    /// Reads the bytes that have arrived, up to a limit, so that other clients need not wait.
    fn fill(&self) -> Result<(), Disconnect> {
        // One read fills a buffer of 16 KiB.
        const READS: usize = 4;
        let (mut read, mut buffer) = (self.read.borrow_mut(), self.server.read_buffer.borrow_mut());
        self.has_more.set(false);
        for _ in 0..READS {
            match self.transport.try_read(&mut buffer[..]) {
                Ok(0) => {
                    self.has_ended.set(true);
                    return Ok(());
                }
                Ok(length) => read.extend_from_slice(&buffer[..length]),
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
        self.is_holding = false;
        // The end of a wait may end the connection, so that is looked at first.
        while !self.is_blocked() && !self.is_over && !self.writer.is_closed() && self.may_carry_out() {
            let before = at;
            match self.next_command(&mut at) {
                Next::Command(command) if self.must_hold(&command) => {
                    (at, self.is_holding) = (before, true);
                    break;
                }
                Next::Command(command) => self.command(command).await,
                Next::Refused(reply) => self.refuse(reply),
                Next::Nothing => break,
            }
        }
        let mut read = self.read.borrow_mut();
        read.drain(..at);
        if read.is_empty() {
            // A large command must not cost memory for as long as the connection lasts.
            read.shrink_to(64 << 10);
        }
        drop(read);
        self.may_carry_out()
    }

    /// Returns whether a command must wait for the replies to those before it.
    fn must_hold(&self, command: &Command) -> bool {
        let is_reading = self.reading.is_some_and(|number| !self.writer.is_answered(number));
        is_reading || (command.needs_earlier_replies() && self.writer.unanswered() > 0)
    }

    /// Returns whether an acquire must be answered first.
    fn is_blocked(&mut self) -> bool {
        if self.blocked_on.is_some_and(|number| self.writer.is_answered(number)) {
            self.blocked_on = None;
            // The commands behind a wait that was given up are not carried out.
            self.is_over |= self.is_abandoned;
            self.is_abandoned = false;
        }
        self.blocked_on.is_some()
    }

    /// Returns the next complete command, and moves `at` behind it.
    fn next_command(&mut self, at: &mut usize) -> Next {
        let read = self.read.borrow();
        let bounds = self.frame_bounds();
        let words = match frame::words(&read[*at..], bounds) {
            Ok(Some(words)) => words,
            Ok(None) => {
                if read.len() > *at && self.partial_since.get().is_none() {
                    self.partial_since.set(Some(Instant::now()));
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
        self.partial_since.set(None);
        if !self.has_sent_command.replace(true) && matches!(self.writer.principal(), Principal::Anyone) {
            // Without users a client counts as authenticated after its first command. There is no limit per user then.
            let _ = self.permit.set_authenticated(None);
        }
        if self.writer.is_authenticated()
            && let Some(refused) = refuse_transaction(&mut self.is_in_transaction, parts.first())
        {
            return Next::Refused(refused);
        }
        match Command::parse(&parts) {
            Ok(Command::Eval(call)) => self.evaluate(&call),
            Ok(command) => Next::Command(command),
            Err(_) if !self.may_see_parse_error(parts.first()) => Next::Refused(no_auth()),
            Err(bad) => Next::Refused(Reply::Error("BADARG", bad.to_string())),
        }
    }

    /// Returns whether the client has the right to take any lock.
    fn may_take_somewhere(&self) -> bool {
        self.writer.principal().user().is_none_or(|user| user.may_somewhere(Verb::Acquire))
    }

    /// Turns the call of a script into the request that it stands for.
    fn evaluate(&self, call: &Call) -> Next {
        if !self.writer.is_authenticated() {
            return Next::Refused(no_auth());
        }
        if !self.may_take_somewhere() {
            return Next::Refused(no_scripts());
        }
        let mut sent = self.server.scripts.borrow_mut();
        let found = match &call.by {
            CalledBy::Digest(digest) => match sent.get(digest) {
                None => {
                    return Next::Refused(Reply::Error("NOSCRIPT", "no script has this digest; use EVAL".to_owned()));
                }
                found => found,
            },
            CalledBy::Text(text) => scripts::find(text).inspect(|script| drop(sent.add(text, script))),
        };
        let Some(script) = found else { return Next::Refused(unknown_script()) };
        tracing::trace!(script = script.of, "a script of a client");
        match redis::request_of(call, script) {
            Ok((request, form)) => Next::Command(Command::Keyed(request, form)),
            Err(bad) => Next::Refused(Reply::Error("BADARG", bad.to_string())),
        }
    }

    fn frame_bounds(&self) -> FrameBounds {
        if !self.writer.is_authenticated() {
            return FrameBounds { words: 16, bytes: 4096 };
        }
        FrameBounds { words: self.server.bounds.command_words, bytes: self.server.bounds.command_bytes }
    }

    fn refuse(&self, reply: Reply) {
        let number = self.writer.begin();
        self.reply(number, &reply);
    }

    fn reply(&self, number: u64, reply: &Reply) {
        self.server.answer(&self.writer, number, reply);
        self.server.wake.notify_one();
    }

    async fn command(&mut self, command: Command) {
        if !self.may_send(&command) {
            return self.refuse(no_auth());
        }
        let number = self.writer.begin();
        let reply = match command {
            Command::Request(request) => return self.request(number, request),
            Command::Keyed(request, form) => {
                if matches!(request, Request::Query(_)) {
                    self.reading = Some(number);
                }
                self.writer.set_form(number, form);
                return self.request(number, request);
            }
            // It was turned into a request when it was read.
            Command::Eval(_) => Reply::Nil,
            Command::LoadScript(_) if !self.may_take_somewhere() => no_scripts(),
            Command::LoadScript(text) => match scripts::find(&text) {
                Some(script) => Reply::text(self.server.scripts.borrow_mut().add(&text, script)),
                None => unknown_script(),
            },
            Command::Subscribe(subscriptions) => {
                let mut channels = self.server.channels.borrow_mut();
                Reply::Several(subscriptions.into_iter().map(|one| channels.subscribe(self.id, one)).collect())
            }
            Command::Unsubscribe { is_pattern, names } => {
                Reply::Several(self.server.channels.borrow_mut().unsubscribe(self.id, is_pattern, names))
            }
            Command::FindScripts(digests) => {
                let mut known = self.server.scripts.borrow_mut();
                let mut is_known = |digest: &Vec<u8>| Reply::Number(known.get(digest).is_some().into());
                Reply::Array(digests.iter().map(&mut is_known).collect())
            }
            Command::Cluster(request) => self.administer(request).await,
            Command::Auth { user, secret } => {
                let logged_in = self.log_in(user.as_deref().unwrap_or_default(), &secret).await;
                logged_in.err().unwrap_or(Reply::Simple("OK"))
            }
            Command::Hello { version, auth } => self.hello(version, auth).await,
            Command::Detail { is_on } => {
                self.writer.set_detailed(is_on);
                Reply::Simple("OK")
            }
            Command::ClientId => Reply::Number(self.permit.id()),
            Command::ClientName => Reply::Nil,
            Command::Ping { message: None } => Reply::Simple("PONG"),
            Command::Ping { message: Some(message) } => Reply::Bytes(message),
            Command::Quit => {
                self.is_over = true;
                Reply::Simple("OK")
            }
            Command::ListCommands => usages(""),
            Command::DescribeCommands => Reply::Map(Vec::new()),
            Command::Help => usages("LOCK "),
            Command::Info => self.info(),
            Command::Ignored => Reply::Simple("OK"),
        };
        self.reply(number, &reply);
        if self.is_over {
            self.writer.flush();
        }
    }

    fn request(&mut self, number: u64, request: Request) {
        let needs_pushes = match &request {
            Request::Acquire(acquire) if acquire.is_async => Some("ASYNC"),
            Request::Watch { .. } => Some("LOCK WATCH"),
            _ => None,
        };
        if let Some(what) = needs_pushes.filter(|_| self.writer.version() == Version::Two) {
            let why = format!("{what} needs version 3 of the protocol: say HELLO 3 first");
            return self.reply(number, &Reply::Error("BADARG", why));
        }
        // The commands behind one that may queue are not read before its reply.
        if let Request::Acquire(acquire) = &request
            && self.server.with_node(|node| node.may_queue(acquire))
        {
            self.blocked_on = Some(number);
        }
        self.server.request(RequestId { connection: self.id, number }, request);
    }

    /// Carries out an operator's request. The others of this connection wait for it.
    async fn administer(&mut self, request: ClusterRequest) -> Reply {
        let principal = self.writer.principal();
        if let Err(refused) = check_cluster(&principal, &request) {
            if let Refused::Denied(why) = &refused {
                self.writer.audit().denied(principal.user_name().unwrap_or_default(), why);
            }
            return render::refused(&refused, false);
        }
        let Some(admin) = self.server.admin() else {
            return Reply::Error("REFUSED", "this service has just begun; try again".to_owned());
        };
        let result = admin.administer(request.clone()).await;
        if result.is_ok() && !matches!(request, ClusterRequest::Status | ClusterRequest::ReadBackup { .. }) {
            self.writer.audit().administered(&request);
        }
        cluster::reply(result)
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
        if !self.writer.is_authenticated() {
            return no_auth();
        }
        match version {
            Some(2) => self.writer.set_version(Version::Two),
            Some(3) => self.writer.set_version(Version::Three),
            _ => {}
        }
        self.server.with_node(|node| hello_reply(node, self.writer.version(), self.is_relayed))
    }

    fn info(&self) -> Reply {
        let principal = self.writer.principal();
        let may_see_counts = principal.user().is_none_or(|user| user.may_somewhere(Verb::Observe));
        Reply::text(info::text(may_see_counts.then(|| self.server.report()).as_ref()))
    }
}

/// Refuses the commands of a transaction. A client sends them without waiting for the refusal of `MULTI`, and relies on all
/// or none being carried out.
fn refuse_transaction(is_in_transaction: &mut bool, first: Option<&&[u8]>) -> Option<Reply> {
    let is = |name: &str| first.is_some_and(|word| word.eq_ignore_ascii_case(name.as_bytes()));
    const NONE: &str = "there are no transactions (MULTI) here; several locks are taken together with LOCK ACQUIRE name name … TTL ms";
    let was_in_transaction = *is_in_transaction;
    *is_in_transaction = is("MULTI") || (was_in_transaction && !is("EXEC") && !is("DISCARD"));
    match (was_in_transaction, *is_in_transaction) {
        (_, true) => Some(Reply::Error("BADARG", format!("not carried out: {NONE}"))),
        (true, false) => Some(Reply::Error("EXECABORT", format!("nothing was carried out: {NONE}"))),
        (false, false) => None,
    }
}

fn no_scripts() -> Reply {
    Reply::Error("DENIED", "scripts take locks, and this user has no right to 'acquire' any lock".to_owned())
}

fn unknown_script() -> Reply {
    let why = "this is a lock service: it knows the scripts of lock libraries, and runs no other; docs/redis-clients.md \
               lists them, and LOCK HELP the commands that take and release locks";
    Reply::Error("BADARG", why.to_owned())
}

/// Returns the reply to a HELLO.
pub(super) fn hello_reply(node: &Node, version: Version, is_relayed: bool) -> Reply {
    Reply::Map(vec![
        ("server", Reply::Text("palisade")),
        ("version", Reply::Text(env!("CARGO_PKG_VERSION"))),
        ("proto", Reply::Number(if version == Version::Three { 3 } else { 2 })),
        ("mode", Reply::Text("standalone")),
        ("role", Reply::Text(if node.is_leader() { "master" } else { "replica" })),
        ("cluster", Reply::text(format!("{:x}", node.cluster()))),
        ("term", Reply::Number(node.term())),
        ("relayed", Reply::Number(is_relayed.into())),
        ("nodes", Reply::Number(node.membership().members.len() as u64)),
    ])
}

/// Returns the usage of the commands whose names have this prefix.
fn usages(prefix: &str) -> Reply {
    let found = command::USAGES.iter().filter(|(name, _)| name.starts_with(prefix));
    Reply::Array(found.map(|(_, usage)| Reply::Text(usage)).collect())
}
