//! What the service knows: the replica, the clocks, and who waits for what.

use std::collections::{HashMap, VecDeque};
use std::rc::{Rc, Weak};
use std::time::{Duration, Instant};

use palisade_core::{
    Answer, Claims, Command, Cursor, Departure, Ending, Event, Limits, LockName, Patience, Refusal, RequestNo,
    SessionEnd, SessionId, Ticket, Token, Ttl, Waiting, Want,
};
use smallvec::SmallVec;
use tokio::sync::oneshot;

use super::audit::{self, Attempt, Origin, Protocol};
use super::far::{Measures, Teller};
use super::line::Line;
use super::owners::Owners;
use super::show::{self, Page, Times};
use super::tally::Tally;
use super::tokens::TokenBlock;
use super::waiters::{Places, Waiters};
use super::wheel::{Moment, Wheel};
use super::who::{NOT_SIGNING, Refused, Who};
use super::writer::{Writer, Written};
use crate::access::{Users, Verb};
use crate::replica::{Done, Proposal, Replica};
use crate::resp::{Reply, Version};
use crate::sign::Signer;
use crate::storage::disk::Disk;
use crate::storage::{StorageError, Write};

/// How many expiries go into one entry, so that a hundred thousand of them do not hold up everybody else.
const EXPIRIES: usize = 256;
/// A snapshot is made when this much has been logged since the last one.
const COMPACT_AFTER: usize = 64 << 20;

/// Who has not looked at the clock for so long was stopped, or waited for the disk.
const DEAF: Duration = Duration::from_secs(1);

/// How long others wait at a stretch while clients look at locks.
const LOOKING: Duration = Duration::from_millis(5);

/// Whom the answer to a command is for.
pub(super) enum Caller {
    /// Nobody: a clock has proposed it.
    Nobody,
    /// A question on a line.
    Line(Rc<Line>, u64, Form),
    /// A task that waits; if it is queued, it is told how that ends.
    Task(Origin, oneshot::Sender<Result<Answer, Refusal>>, Option<oneshot::Sender<Waited>>),
    /// Any of them, and the attempt that is to be recorded.
    Audited(Box<Caller>, Box<Attempt>),
}

impl Caller {
    fn origin(&self) -> Option<Origin> {
        match self {
            Caller::Nobody => None,
            Caller::Line(line, ..) => Some(line.origin()),
            Caller::Task(origin, ..) => Some(origin.clone()),
            Caller::Audited(caller, _) => caller.origin(),
        }
    }

    fn protocol(&self) -> Option<Protocol> {
        match self {
            Caller::Nobody => None,
            Caller::Line(..) => Some(Protocol::Resp),
            Caller::Task(origin, ..) => Some(origin.protocol),
            Caller::Audited(caller, _) => caller.protocol(),
        }
    }
}

/// How a wait ends.
pub(super) type Waited = Result<Token, Departure>;

/// In which form a line wants its answer.
#[derive(Debug)]
pub(super) enum Form {
    Opened {
        ttl: Ttl,
    },
    Acquired {
        session: SessionId,
        number: Option<RequestNo>,
        is_async: bool,
        /// Counted until it is answered.
        #[allow(dead_code, reason = "it counts until it is dropped")]
        wait: Option<Places>,
    },
    Plain,
    Released,
    Cancelled,
    Forced,
    Raised {
        above: Token,
    },
}

impl Form {
    /// Of the answer to a command that changes something at once.
    pub(super) fn of(command: &Command) -> Form {
        match command {
            Command::OpenSession { ttl, .. } => Form::Opened { ttl: *ttl },
            Command::Release { .. } => Form::Released,
            Command::Cancel { .. } => Form::Cancelled,
            Command::ForceRelease { .. } => Form::Forced,
            Command::RaiseTokens { above } => Form::Raised { above: *above },
            _ => Form::Plain,
        }
    }
}

/// Who wants to look, and at what.
pub(super) enum Reader {
    Line(Rc<Line>, u64, Look),
    Task(oneshot::Sender<Result<Reply, Refused>>, Look, Who),
}

/// What can be looked at.
pub(super) enum Look {
    Show {
        lock: LockName,
        cursor: u32,
        count: u32,
    },
    List {
        prefix: String,
        cursor: u32,
        count: u32,
    },
    Leader(LockName),
    /// A signed statement that this is how things are.
    Sign {
        lock: LockName,
        token: Token,
        session: Option<SessionId>,
    },
}

/// Who waits in a queue.
enum Wait {
    /// Told by a push, on every line that has asked.
    Push(Lines, Option<RequestNo>),
    /// A task that waits.
    Task(oneshot::Sender<Waited>),
}

/// Lines that are told the same. Usually one; a client that has come back on another line may still have requests
/// under way on its old one, and whichever is read last must not take the answer away from the other.
#[derive(Default)]
struct Lines(SmallVec<[Weak<Line>; 1]>);

impl Lines {
    fn add(&mut self, line: &Rc<Line>) {
        let line = Rc::downgrade(line);
        self.0.retain(|other| other.strong_count() > 0 && !other.ptr_eq(&line));
        self.0.push(line);
    }

    fn live(&self) -> impl Iterator<Item = Rc<Line>> {
        self.0.iter().filter_map(Weak::upgrade)
    }
}

struct Watcher {
    ear: Ear,
    prefixes: Vec<String>,
}

/// This node does not lead, or not yet.
#[derive(Debug)]
pub(super) struct NotLeading;

impl From<NotLeading> for Reply {
    fn from(_: NotLeading) -> Reply {
        let why = "this node does not lead, or not yet: nothing was changed; ask again soon";
        Reply::Error("NOTLEADER", why.to_owned())
    }
}

/// Who hears of events.
enum Ear {
    Line(Weak<Line>),
    Far(Teller),
}

impl Ear {
    fn is_open(&self) -> bool {
        match self {
            Ear::Line(line) => line.strong_count() > 0,
            Ear::Far(teller) => !teller.is_closed(),
        }
    }

    fn sees(&self, lock: &LockName) -> bool {
        match self {
            Ear::Line(line) => line.upgrade().is_some_and(|line| line.sees(lock.as_str())),
            Ear::Far(teller) => teller.sees(lock),
        }
    }

    fn is(&self, line: &Rc<Line>) -> bool {
        matches!(self, Ear::Line(own) if own.ptr_eq(&Rc::downgrade(line)))
    }
}

pub(super) struct State<D: Disk> {
    pub(super) replica: Replica<Caller, Reader>,
    writer: Writer<D>,
    tokens: TokenBlock,
    queue: Vec<Proposal<Caller>>,
    /// Whether anything in the queue is worth a write of its own.
    is_urgent: bool,
    /// When it last looked at the clock.
    looked_at: Instant,
    expired: VecDeque<Command>,
    in_flight: usize,
    /// When sessions' time began; later by as long as it could hear nobody.
    began: Instant,
    sessions: Wheel<SessionId>,
    delays: Wheel<Token>,
    withheld: HashMap<Token, LockName>,
    granted_at: HashMap<Token, Moment>,
    waits: HashMap<Ticket, Wait>,
    watchers: Vec<Watcher>,
    attached: HashMap<SessionId, Lines>,
    to_flush: Vec<Rc<Line>>,
    pub(super) tally: Tally,
    /// When what is being written was handed over, the oldest first.
    handed_at: VecDeque<(u64, Instant)>,
    queued_at: HashMap<Ticket, Moment>,
    /// Reads that may be answered, when there is time.
    to_look: VecDeque<Reader>,
    pub(super) owners: Owners,
    pub(super) waiters: Waiters,
    pub(super) users: Option<Users>,
    /// What the rules are to accept, if it was said.
    pub(super) limits: Option<Limits>,
    pub(super) signer: Option<Signer>,
}

impl<D: Disk> State<D> {
    pub(super) fn new(replica: Replica<Caller, Reader>, writer: Writer<D>, tokens: TokenBlock) -> State<D> {
        State {
            replica,
            writer,
            tokens,
            queue: Vec::new(),
            is_urgent: false,
            looked_at: Instant::now(),
            expired: VecDeque::new(),
            in_flight: 0,
            began: Instant::now(),
            sessions: Wheel::new(),
            delays: Wheel::new(),
            withheld: HashMap::new(),
            granted_at: HashMap::new(),
            waits: HashMap::new(),
            watchers: Vec::new(),
            attached: HashMap::new(),
            to_flush: Vec::new(),
            tally: Tally::default(),
            handed_at: VecDeque::new(),
            queued_at: HashMap::new(),
            to_look: VecDeque::new(),
            owners: Owners::default(),
            waiters: Waiters::default(),
            users: None,
            limits: None,
            signer: None,
        }
    }

    /// Sessions' time. It stands still while the service cannot hear that they live.
    fn now(&self) -> Moment {
        self.began.elapsed()
    }

    /// Whether a command will only wait its turn. Nobody is held up if it does so a little later, with the next write.
    fn will_wait(&self, command: &Command) -> bool {
        let Command::Acquire(acquire) = command else { return false };
        let is_taken =
            |want: &Want| self.replica.machine().lock(&want.lock).is_some_and(|lock| !lock.is_available(want.mode));
        acquire.patience == Patience::Wait && acquire.wants.iter().any(is_taken)
    }

    pub(super) fn submit(&mut self, command: Command, caller: Caller) {
        if let Some(protocol) = caller.protocol() {
            self.tally.command(protocol, &command);
        }
        let caller = match Attempt::of(&command, || caller.origin()) {
            Some(attempt) => Caller::Audited(Box::new(caller), Box::new(attempt)),
            None => caller,
        };
        self.is_urgent |= !self.will_wait(&command);
        self.queue.push(Proposal { command, caller });
    }

    /// Keeps a session alive. `None` if it lives no longer; only who leads knows that.
    pub(super) fn keep_alive(&mut self, session: SessionId) -> Result<Option<Ttl>, NotLeading> {
        if !self.replica.holds_office() {
            return Err(NotLeading);
        }
        let Some(view) = self.replica.machine().session(session) else { return Ok(None) };
        let ttl = view.ttl();
        self.tally.keepalives += 1;
        Ok(self.sessions.renew(session, self.now() + millis(ttl)).then_some(ttl))
    }

    pub(super) fn attach(&mut self, session: SessionId, line: &Rc<Line>) {
        self.attached.entry(session).or_default().add(line);
    }

    /// The tokens that a session holds.
    pub(super) fn held(&self, session: SessionId) -> Vec<Token> {
        let view = self.replica.machine().session(session);
        view.map_or_else(Vec::new, |view| view.grants().map(|(_, token)| token).collect())
    }

    pub(super) fn unwatch(&mut self, line: &Rc<Line>, prefix: &str) {
        for watcher in self.watchers.iter_mut().filter(|watcher| watcher.ear.is(line)) {
            watcher.prefixes.retain(|watched| watched != prefix);
        }
        self.watchers.retain(|watcher| !watcher.prefixes.is_empty());
    }

    /// A line is told of an event once, however many of its prefixes match. Before this node leads, it may still have
    /// to apply what happened long ago.
    pub(super) fn watch(&mut self, line: &Rc<Line>, prefix: String) -> Result<(), NotLeading> {
        if !self.replica.holds_office() {
            return Err(NotLeading);
        }
        self.watchers.retain(|watcher| watcher.ear.is_open());
        match self.watchers.iter_mut().find(|watcher| watcher.ear.is(line)) {
            Some(watcher) if watcher.prefixes.contains(&prefix) => {}
            Some(watcher) => watcher.prefixes.push(prefix),
            None => self.watchers.push(Watcher { ear: Ear::Line(Rc::downgrade(line)), prefixes: vec![prefix] }),
        }
        Ok(())
    }

    pub(super) fn watch_from_afar(&mut self, teller: Teller, prefix: String) {
        self.watchers.retain(|watcher| watcher.ear.is_open());
        self.watchers.push(Watcher { ear: Ear::Far(teller), prefixes: vec![prefix] });
    }

    /// How things stand, for those who look after the service.
    pub(super) fn measures(&self) -> Measures {
        let machine = self.replica.machine();
        Measures {
            tally: self.tally.clone(),
            sessions: machine.session_count(),
            locks: machine.lock_count(),
            last_token: machine.last_token().map_or(0, Token::get),
            watchers: self.watchers.iter().filter(|watcher| watcher.ear.is_open()).count(),
            leads: self.replica.holds_office(),
            write_under_way: self.handed_at.front().map(|(_, at)| at.elapsed()),
        }
    }

    /// Takes in what the writing threads report.
    pub(super) fn note(&mut self, written: Written) -> Result<(), StorageError> {
        match written {
            Written::UpTo(number, took) => {
                self.in_flight -= 1;
                self.writer.note(took);
                while self.handed_at.front().is_some_and(|(handed, _)| *handed <= number) {
                    if let Some((_, at)) = self.handed_at.pop_front() {
                        self.tally.commits.observe(at.elapsed().as_secs_f64());
                    }
                }
                self.replica.persisted(number);
            }
            Written::Failed(error) => return Err(error),
            Written::Compacted(Ok(index)) => {
                self.replica.compacted(Some(index));
                self.writer.forget(index);
            }
            Written::Compacted(Err(error)) => {
                tracing::error!(%error, "no snapshot could be made; the log grows meanwhile");
                self.replica.compacted(None);
            }
        }
        Ok(())
    }

    /// Ends what is due.
    pub(super) fn tick(&mut self) {
        self.replica.tick();
        let looks_at = Instant::now();
        let since = looks_at - std::mem::replace(&mut self.looked_at, looks_at);
        if since > DEAF {
            self.began += since;
        }
        self.is_urgent |= !self.queue.is_empty();
        let now = self.now();
        for session in self.sessions.due(now) {
            self.expired.push_back(Command::ExpireSession { session });
        }
        for token in self.delays.due(now) {
            if let Some(lock) = self.withheld.remove(&token) {
                self.expired.push_back(Command::EndDelay { lock, token });
            }
        }
    }

    /// Does all there is to do, until something is durable or somebody asks.
    pub(super) fn turn(&mut self) -> Result<(), StorageError> {
        self.propose();
        loop {
            let outputs = self.replica.outputs();
            let is_idle = outputs.persist.is_empty() && outputs.applied.is_empty();
            for (number, write) in outputs.persist {
                self.persist(number, write)?;
            }
            self.reserve_tokens()?;
            for done in outputs.applied {
                self.tell(done);
            }
            if outputs.took_office {
                self.take_office()?;
            }
            self.to_look.extend(outputs.reads);
            if is_idle {
                break;
            }
        }
        let began = Instant::now();
        while began.elapsed() < LOOKING
            && let Some(reader) = self.to_look.pop_front()
        {
            self.look(reader);
        }
        if let Some(compaction) = self.replica.compaction(COMPACT_AFTER) {
            self.writer.compact(compaction);
        }
        self.flush();
        Ok(())
    }

    fn flush(&mut self) {
        for line in std::mem::take(&mut self.to_flush) {
            line.flush();
        }
    }

    fn persist(&mut self, number: u64, write: Write) -> Result<(), StorageError> {
        let began = Instant::now();
        let left = if self.in_flight == 0 {
            // Whoever has an answer need not wait for the disk.
            self.flush();
            self.writer.write_here(write)?
        } else {
            Some(write)
        };
        if let Some(write) = left {
            self.in_flight += 1;
            self.handed_at.push_back((number, began));
            self.writer.write(number, write);
        } else {
            self.tally.commits.observe(began.elapsed().as_secs_f64());
            self.replica.persisted(number);
        }
        Ok(())
    }

    /// Whether there is more to do without anything new. Others have their turn before it is done.
    pub(super) fn is_busy(&self) -> bool {
        !self.to_look.is_empty() || self.has_to_propose()
    }

    fn has_to_propose(&self) -> bool {
        self.in_flight == 0 && self.replica.holds_office() && (self.is_urgent || !self.expired.is_empty())
    }

    /// What has come together while the last write was being made durable becomes the next entry.
    fn propose(&mut self) {
        if !self.has_to_propose() {
            return;
        }
        self.is_urgent = false;
        let mut batch = std::mem::take(&mut self.queue);
        let expired = self.expired.drain(..self.expired.len().min(EXPIRIES));
        batch.extend(expired.map(|command| Proposal { command, caller: Caller::Nobody }));
        let size = batch.len();
        match self.replica.propose(batch) {
            Ok(()) => self.tally.batches.observe(size as f64),
            Err(refused) => (self.queue, self.is_urgent) = (refused, true),
        }
    }

    /// From now on this node times the sessions: each has its full TTL again.
    fn last_token(&self) -> u64 {
        self.replica.machine().last_token().map_or(0, Token::get)
    }

    /// Makes the watermark durable that the latest grants need, before they are answered.
    fn reserve_tokens(&mut self) -> Result<(), StorageError> {
        match self.tokens.needed_for(self.last_token(), self.replica.applied()) {
            Some(watermark) => self.writer.replace_watermark(watermark),
            None => Ok(()),
        }
    }

    /// Gives back the rest of the block, so that the next start continues with the next token.
    pub(super) fn return_tokens(&mut self) -> Result<(), StorageError> {
        let watermark = self.tokens.stopped(self.last_token(), self.replica.applied());
        self.writer.replace_watermark(watermark)
    }

    fn take_office(&mut self) -> Result<(), StorageError> {
        self.writer.replace_watermark(self.tokens.started(self.replica.applied()))?;
        let now = self.now();
        self.sessions.clear();
        self.delays.clear();
        self.withheld.clear();
        for session in self.replica.machine().sessions() {
            self.sessions.set(session.id(), now + millis(session.ttl()));
        }
        for (locks, token, delay) in self.replica.machine().withheld() {
            self.delays.set(token, now + Duration::from_millis(delay.as_ms()));
            self.withheld.insert(token, locks[0].clone());
        }
        self.queued_at.clear();
        self.tally.waiting = 0;
        for (_, lock) in self.replica.machine().locks(Cursor(0)) {
            self.tally.waiting += u64::from(lock.waiter_count());
        }
        self.owners.count(self.replica.machine());
        self.waiters.count(self.replica.machine(), |session| self.owners.of(session));
        self.end_forbidden_waits();
        if let Some(limits) = self.limits.clone().filter(|limits| limits != self.replica.machine().limits()) {
            self.submit(Command::Configure { limits }, Caller::Nobody);
        }
        if let Some(above) = self.tokens.raise_after(self.last_token()).and_then(|above| Token::new(above).ok()) {
            // Before anything that clients have asked for meanwhile.
            self.queue.insert(0, Proposal { command: Command::RaiseTokens { above }, caller: Caller::Nobody });
            self.is_urgent = true;
        }
        tracing::info!(sessions = self.replica.machine().session_count(), "this node leads");
        Ok(())
    }

    /// Ends the waits of users that were removed since, or have no right any more to what they wait for.
    pub(super) fn end_forbidden_waits(&mut self) {
        let Some(users) = self.users.clone() else { return };
        let mut forbidden = Vec::new();
        for (_, lock) in self.replica.machine().locks(Cursor(0)) {
            for waiter in lock.waiters() {
                let user = self.owners.of(waiter.session).and_then(|name| users.vouched_for(name));
                let verb = Verb::to_acquire(waiter.mode);
                if !user.is_some_and(|user| user.may(verb, lock.name().as_str())) {
                    forbidden.push((waiter.session, waiter.ticket));
                }
            }
        }
        // One that waits for several locks may be there several times; it is cancelled once.
        forbidden.sort_unstable();
        forbidden.dedup();
        forbidden.into_iter().for_each(|(session, ticket)| self.end_wait_of(session, ticket));
    }

    fn end_wait_of(&mut self, session: SessionId, ticket: Ticket) {
        let cancel = Command::Cancel { caller: session.into(), waiting: Waiting::Ticket(ticket) };
        self.submit(cancel, Caller::Nobody);
    }

    fn tell(&mut self, done: Done<Caller>) {
        // A wait must be known before the events that may end it.
        let Done { caller, applied } = done;
        let caller = match caller {
            Some(Caller::Audited(caller, attempt)) => {
                attempt.record(&applied.answer);
                self.tally.forced += u64::from(matches!(applied.answer, Ok(Answer::Forced { .. })));
                Some(*caller)
            }
            caller => caller,
        };
        // What was proposed elsewhere, or before a restart, was counted then.
        if let Some(caller) = &caller {
            audit::denials(|| caller.origin(), &applied.answer);
            applied.events.iter().for_each(|event| self.tally.event(event));
        }
        match caller {
            None | Some(Caller::Nobody | Caller::Audited(..)) => {}
            Some(Caller::Task(_, task, wait)) => {
                if let (Ok(Answer::Queued { ticket }), Some(wait)) = (&applied.answer, wait) {
                    self.waits.insert(*ticket, Wait::Task(wait));
                }
                drop(task.send(applied.answer));
            }
            Some(Caller::Line(line, question, form)) => {
                let again = if applied.events.is_empty() { granted_again(&form, &applied.answer) } else { None };
                self.answer(&line, question, &form, applied.answer);
                if let Some((session, token)) = again {
                    self.tell_if_ended(&line, session, token);
                }
            }
        }
        for event in &applied.events {
            self.heed(event);
        }
    }

    pub(super) fn reply(&mut self, line: &Rc<Line>, question: u64, reply: &Reply) {
        self.tally.resp_requests += 1;
        if let Reply::Error(code, _) = reply {
            self.tally.refused(code);
        }
        if line.answer(question, reply) {
            self.to_flush.push(line.clone());
        }
    }

    fn say(&mut self, line: &Rc<Line>, what: &Reply) {
        if line.version() == Version::Three && line.push(what) {
            self.to_flush.push(line.clone());
        }
    }

    fn answer(&mut self, line: &Rc<Line>, question: u64, form: &Form, answer: Result<Answer, Refusal>) {
        if let (Form::Opened { .. }, Who::User(user)) = (form, line.who()) {
            self.owners.answered(user.name());
        }
        let reply = match (form, answer) {
            (Form::Opened { ttl }, Ok(Answer::Opened { session })) => {
                self.attach(session, line);
                opened(session, *ttl)
            }
            (Form::Acquired { session, .. }, Ok(Answer::Granted { token })) => self.granted(*session, token),
            (Form::Acquired { number, is_async: true, .. }, Ok(Answer::Queued { ticket })) => {
                self.wait_on(ticket, line, *number);
                Reply::Simple("QUEUED")
            }
            (Form::Acquired { .. }, Ok(_)) => Reply::Nil,
            (Form::Released, Ok(_)) => Reply::Number(1),
            (Form::Cancelled, Ok(_)) | (Form::Cancelled, Err(Refusal::NotWaiting)) => Reply::Nil,
            (Form::Cancelled, Err(Refusal::AlreadyGranted { token })) => Reply::Number(token.get()),
            (Form::Raised { above }, Ok(Answer::Raised { last })) => Reply::Number(u64::from(last < above.get())),
            (Form::Forced, Ok(Answer::Forced { grants, moved_to })) => Reply::Map(vec![
                ("grants", Reply::Number(grants.into())),
                ("moved_to", Reply::Number(moved_to.get())),
            ]),
            (_, Ok(_)) => Reply::Simple("OK"),
            (_, Err(refusal)) => refused(&refusal, line),
        };
        self.reply(line, question, &reply);
    }

    fn wait_on(&mut self, ticket: Ticket, line: &Rc<Line>, number: Option<RequestNo>) {
        let wait = self.waits.entry(ticket).or_insert_with(|| Wait::Push(Lines::default(), number));
        if let Wait::Push(lines, _) = wait {
            lines.add(line);
        }
    }

    /// The repeat of a request is told of its grant, even if that has ended since: then it must be told of that too.
    fn tell_if_ended(&mut self, line: &Rc<Line>, session: SessionId, token: Token) {
        if !self.held(session).contains(&token) {
            let (session, token) = (Reply::Number(session.get()), Reply::Number(token.get()));
            let unknown = [Reply::Nil, Reply::Nil, Reply::Nil];
            let mut push = vec![Reply::Text("lost"), session, token, Reply::Text("ended")];
            push.extend(unknown);
            self.say(line, &Reply::Push(push));
        }
    }

    pub(super) fn granted(&self, session: SessionId, token: Token) -> Reply {
        let ttl = self.replica.machine().session(session).map_or(0, |session| session.ttl().as_ms());
        granted(session, token, ttl)
    }

    fn heed(&mut self, event: &Event) {
        let now = self.now();
        match event {
            Event::SessionOpened { session, ttl } => {
                self.sessions.set(*session, now + millis(*ttl));
                self.owners.opened(*session, self.replica.machine());
            }
            Event::SessionEnded { session, how } => self.session_ended(*session, *how),
            Event::Granted { session, token, ticket, .. } => {
                self.granted_at.insert(*token, now);
                if let Some(ticket) = ticket {
                    self.end_wait(*ticket, Ok((*session, *token)));
                }
            }
            Event::Queued { ticket, session, locks } => {
                self.queued_at.insert(*ticket, now);
                let user = self.owners.of(*session);
                self.waiters.queued(*ticket, user, locks.len());
                // Its user may have been removed while the request was being made durable.
                let users = self.users.as_ref().filter(|_| self.replica.holds_office());
                if users.is_some_and(|users| user.and_then(|user| users.vouched_for(user)).is_none()) {
                    self.end_wait_of(*session, *ticket);
                }
            }
            Event::LeftQueue { ticket, why, session, .. } => self.end_wait(*ticket, Err((*session, why.clone()))),
            Event::GrantEnded { session, token, how, .. } => {
                self.granted_at.remove(token);
                self.grant_ended(*session, *token, how);
            }
            Event::Withheld { locks, token, delay } => {
                self.delays.set(*token, now + Duration::from_millis(delay.as_ms()));
                self.withheld.insert(*token, locks[0].clone());
            }
            Event::DelayEnded { token, .. } => {
                self.delays.remove(*token);
                self.withheld.remove(token);
            }
            _ => {}
        }
        self.tell_watchers(event);
    }

    fn session_ended(&mut self, session: SessionId, how: SessionEnd) {
        self.sessions.remove(session);
        self.owners.ended(session);
        let how = if how == SessionEnd::Closed { "closed" } else { "expired" };
        let push = [Reply::Text("session-ended"), Reply::Number(session.get()), Reply::Text(how)];
        let push = Reply::Push(push.into());
        for line in self.attached.remove(&session).unwrap_or_default().live() {
            self.say(&line, &push);
        }
    }

    fn grant_ended(&mut self, session: SessionId, token: Token, how: &Ending) {
        if *how == Ending::Released {
            return;
        }
        let lines: SmallVec<[_; 1]> = self.attached.get(&session).into_iter().flat_map(Lines::live).collect();
        if lines.is_empty() {
            return;
        }
        let push = lost(session, token, how);
        for line in lines {
            self.say(&line, &push);
        }
    }

    fn end_wait(&mut self, ticket: Ticket, outcome: Result<(SessionId, Token), (SessionId, Departure)>) {
        if let Some(at) = self.queued_at.remove(&ticket) {
            let waited = self.now().saturating_sub(at).as_secs_f64();
            let histogram = if outcome.is_ok() { &mut self.tally.waits_granted } else { &mut self.tally.waits_left };
            histogram.observe(waited);
        }
        self.waiters.left(ticket);
        match self.waits.remove(&ticket) {
            Some(Wait::Task(task)) => {
                drop(task.send(outcome.map(|(_, token)| token).map_err(|(_, why)| why)));
            }
            Some(Wait::Push(lines, number)) => {
                for line in lines.live() {
                    let push = ended_wait(number, &outcome, line.is_detailed());
                    self.say(&line, &push);
                }
            }
            None => {}
        }
    }

    fn tell_watchers(&mut self, event: &Event) {
        if self.watchers.is_empty() {
            return;
        }
        let Some((locks, fields)) = show::event(event) else { return };
        let mut detailed = fields.clone();
        detailed.push(Reply::text(serde_json::to_string(event).unwrap_or_default()));
        let (plain, detailed) = (Reply::Push(fields), Reply::Push(detailed));
        let mut watchers = std::mem::take(&mut self.watchers);
        watchers.retain(|watcher| watcher.ear.is_open());
        for Watcher { ear, prefixes } in &watchers {
            let is_watched = |lock: &LockName| prefixes.iter().any(|prefix| lock.as_str().starts_with(prefix));
            if !locks.iter().any(|lock| is_watched(lock) && ear.sees(lock)) {
                continue;
            }
            match (locks.iter().all(|lock| ear.sees(lock)), ear) {
                (true, Ear::Line(line)) => {
                    let Some(line) = line.upgrade() else { continue };
                    self.say(&line, if line.is_detailed() { &detailed } else { &plain });
                }
                (true, Ear::Far(teller)) => teller.tell(&plain),
                (false, ear) => self.tell_in_part(ear, event),
            }
        }
        self.watchers = watchers;
    }

    /// Tells of an event that is about some locks which may not be seen.
    fn tell_in_part(&mut self, ear: &Ear, event: &Event) {
        let event = show::narrowed(event, |lock| ear.sees(lock));
        let Some((_, mut fields)) = show::event(&event) else { return };
        match ear {
            Ear::Far(teller) => teller.tell(&Reply::Push(fields)),
            Ear::Line(line) => {
                let Some(line) = line.upgrade() else { return };
                if line.is_detailed() {
                    fields.push(Reply::text(serde_json::to_string(&event).unwrap_or_default()));
                }
                self.say(&line, &Reply::Push(fields));
            }
        }
    }

    fn look(&mut self, reader: Reader) {
        match reader {
            Reader::Line(line, _, _) if line.is_closed() => {}
            Reader::Line(line, question, look) => {
                self.tally.look(Protocol::Resp, &look);
                let reply = self.seen(look, &line.who()).unwrap_or_else(|why| not_done(&why, &line));
                self.reply(&line, question, &reply);
            }
            Reader::Task(task, look, who) => drop(task.send(self.seen(look, &who))),
        }
    }

    /// What there is to see, as far as it may be seen.
    fn seen(&self, look: Look, who: &Who) -> Result<Reply, Refused> {
        let machine = self.replica.machine();
        Ok(match look {
            Look::Show { lock, cursor, count } => {
                let count = count.clamp(1, show::PAGE_COUNT) as usize;
                let page = Page { skipped: cursor as usize, count };
                machine.lock(&lock).map_or(Reply::Nil, |view| self.show(view, &page))
            }
            Look::List { prefix, cursor, count } => self.list(who, &prefix, cursor, count),
            Look::Leader(lock) => machine.lock(&lock).map_or(Reply::Nil, leader),
            Look::Sign { lock, token, session } => Reply::text(self.signed(lock, token, session)?),
        })
    }

    /// A signed token, if this token holds this lock now.
    fn signed(&self, lock: LockName, token: Token, asker: Option<SessionId>) -> Result<String, Refused> {
        let signer = self.signer.as_ref().ok_or(Refused::NotSigning)?;
        let (session, mode) = self.replica.machine().held(asker, &lock, token)?;
        let principal = self.owners.of(session).map(str::to_owned);
        let cluster = String::new();
        let claims = Claims { cluster, principal, lock, token, session, scope: mode.into() };
        signer.sign(claims).ok_or(Refused::NotSigning)
    }

    fn show(&self, view: palisade_core::LockView<'_>, page: &Page) -> Reply {
        let now = self.now();
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        show::lock(view, page, |session, token| Times {
            held_for_ms: self.granted_at.get(&token).map(|at| ms(now.saturating_sub(*at))),
            time_left_ms: session.and_then(|id| self.sessions.get(id)).map(|at| ms(at.saturating_sub(now))),
        })
    }

    fn list(&self, who: &Who, prefix: &str, cursor: u32, count: u32) -> Reply {
        // What is looked at is bounded as well as what is shown, so that no list holds up the others.
        const LOOKED_AT: usize = 20_000;
        let page = Page { skipped: 0, count: show::LISTED };
        let (mut next, mut bytes) = (0, 0);
        let mut found = Vec::new();
        for (looked_at, (after, view)) in self.replica.machine().locks(Cursor(cursor)).enumerate() {
            let is_full = found.len() >= count.clamp(1, 1000) as usize || bytes >= show::PAGE_BYTES;
            if is_full || looked_at >= LOOKED_AT {
                next = after.0 - 1;
                break;
            }
            if view.name().as_str().starts_with(prefix) && who.sees(view.name().as_str()) {
                let shown = self.show(view, &page);
                bytes += shown.weight();
                found.push(shown);
            }
        }
        Reply::Map(vec![("cursor", Reply::Number(next.into())), ("locks", Reply::Array(found))])
    }
}

/// What is said on a line when something is not carried out.
pub(super) fn not_done(why: &Refused, line: &Line) -> Reply {
    match why {
        Refused::Denied(why) => Reply::Error("DENIED", why.clone()),
        Refused::Refusal(refusal) => refused(refusal, line),
        Refused::NotSigning => Reply::Error("NOTSIGNING", NOT_SIGNING.to_owned()),
        Refused::OverBound(why) => Reply::Error("LIMIT", why.clone()),
    }
}

fn leader(view: palisade_core::LockView<'_>) -> Reply {
    let Some(value) = view.value() else { return Reply::Nil };
    let Some(grant) = view.holders().next() else { return Reply::Nil };
    let palisade_core::GrantState::Held { session, label } = grant.state else { return Reply::Nil };
    Reply::Map(vec![
        ("value", Reply::Bytes(value.as_bytes().to_vec())),
        ("token", Reply::Number(grant.token.get())),
        ("session", Reply::Number(session.get())),
        ("label", Reply::text(label.as_str())),
    ])
}

fn lost(session: SessionId, token: Token, how: &Ending) -> Reply {
    let (what, why) = match how {
        Ending::Forced(force) => {
            let (by, reason) = (Reply::text(force.by.as_str()), Reply::text(force.reason.as_str()));
            ("forced", [by, reason, Reply::Number(force.moved_to.get())])
        }
        Ending::SessionEnded(SessionEnd::Expired) => ("expired", [Reply::Nil, Reply::Nil, Reply::Nil]),
        Ending::SessionEnded(SessionEnd::Closed) => ("closed", [Reply::Nil, Reply::Nil, Reply::Nil]),
        Ending::Released => ("released", [Reply::Nil, Reply::Nil, Reply::Nil]),
    };
    let (session, token) = (Reply::Number(session.get()), Reply::Number(token.get()));
    let mut push = vec![Reply::Text("lost"), session, token, Reply::Text(what)];
    push.extend(why);
    Reply::Push(push)
}

fn ended_wait(
    number: Option<RequestNo>,
    outcome: &Result<(SessionId, Token), (SessionId, Departure)>,
    is_detailed: bool,
) -> Reply {
    let number = number.map_or(Reply::Nil, |number| Reply::Number(number.get()));
    Reply::Push(match outcome {
        Ok((session, token)) => {
            vec![Reply::Text("granted"), Reply::Number(session.get()), number, Reply::Number(token.get())]
        }
        Err((session, why)) => {
            let why = match why {
                Departure::Refused(refusal) if is_detailed => serde_json::to_string(refusal).unwrap_or_default(),
                Departure::Refused(refusal) => refusal.to_string(),
                Departure::Cancelled => "cancelled".to_owned(),
                Departure::SessionEnded(_) => "session-ended".to_owned(),
            };
            vec![Reply::Text("refused"), Reply::Number(session.get()), number, Reply::text(why)]
        }
    })
}

/// Whose grant an acquire is answered with, and which.
fn granted_again(form: &Form, answer: &Result<Answer, Refusal>) -> Option<(SessionId, Token)> {
    match (form, answer) {
        (Form::Acquired { session, .. }, Ok(Answer::Granted { token })) => Some((*session, *token)),
        _ => None,
    }
}

fn millis(ttl: Ttl) -> Duration {
    Duration::from_millis(ttl.as_ms())
}

pub(super) fn opened(session: SessionId, ttl: Ttl) -> Reply {
    Reply::Map(vec![("session", Reply::Number(session.get())), ("ttl_ms", Reply::Number(ttl.as_ms()))])
}

pub(super) fn granted(session: SessionId, token: Token, ttl_ms: u64) -> Reply {
    Reply::Map(vec![
        ("token", Reply::Number(token.get())),
        ("session", Reply::Number(session.get())),
        ("ttl_ms", Reply::Number(ttl_ms)),
    ])
}

/// The code of a refusal, which stays.
pub(crate) fn code(refusal: &Refusal) -> &'static str {
    match refusal {
        Refusal::NoSuchSession { .. } => "NOSESSION",
        Refusal::NoSuchLock { .. } | Refusal::NobodyHolds { .. } | Refusal::NotHeld { .. } => "NOTHELD",
        Refusal::NotWithheld { .. } | Refusal::OtherSession { .. } | Refusal::NeverGranted { .. } => "NOTHELD",
        Refusal::OverLimit { .. } | Refusal::UnderLimit { .. } | Refusal::TokensExhausted { .. } => "LIMIT",
        Refusal::RaiseTooHigh { .. } => "LIMIT",
        Refusal::AlreadyHeld { .. } => "HELD",
        Refusal::AlreadyGranted { .. } => "GRANTED",
        Refusal::NotWaiting | Refusal::Withdrawn { .. } => "CANCELLED",
        Refusal::NumberReused { .. } | Refusal::NumberForgotten { .. } => "STALE",
        Refusal::WrongKind { .. } | Refusal::LimitDiffers { .. } | Refusal::ResizedBelow { .. } => "KIND",
        Refusal::NoLocks
        | Refusal::NamedTwice { .. }
        | Refusal::BadPermits { .. }
        | Refusal::BadLimit { .. }
        | Refusal::ValueNotPossible => "BADARG",
    }
}

/// A refusal, under its code; for programs, with the refusal itself behind a tab.
pub(super) fn refused(refusal: &Refusal, line: &Line) -> Reply {
    let mut message = refusal.to_string();
    if line.is_detailed()
        && let Ok(detail) = serde_json::to_string(refusal)
    {
        message.push('\t');
        message.push_str(&detail);
    }
    Reply::Error(code(refusal), message)
}
