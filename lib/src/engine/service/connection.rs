//! One connection to the service. Commands of one event-loop iteration share a write, and replies come in the order of the
//! commands. One reader handles replies and pushes in the order in which they arrive.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use palisade_core::{Acquire, Patience};
use redis_protocol::resp3::decode::complete::decode_bytes_mut;
use redis_protocol::resp3::types::BytesFrame;
use rustls::ClientConfig;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, split};
use tokio::sync::{Notify, oneshot};

use super::ServiceBackend;
use super::config::{Config, TLS};
use super::error::{NoReply, ReplyError, Unexpected};
use super::wire::{self, Command};
use crate::engine::Failure;
use crate::engine::remote::{
    AcquireReply, Address, ClientState, ConnectError, Peer, Push, RemoteConnection, SecurityError, Tls, WaitKey,
    connect_tcp, encrypt, stream_error,
};
use crate::time::{Instant, sleep_until, timeout};

/// A call that takes longer fails, and breaks the connection.
pub(super) const CALL_TIMEOUT: Duration = Duration::from_secs(5);
/// A reply that takes longer is overdue: another node may lead. Longer than that on a slow network.
const OVERDUE: Duration = Duration::from_millis(500);
/// On a slow network, a reply is overdue after this many round trips.
const OVERDUE_ROUND_TRIPS: u32 = 4;
/// A connection on which nothing was received for this long is probed with a PING.
const QUIET: Duration = Duration::from_secs(5);
/// The longest accepted reply. The service drops a client that lags further behind.
const LONGEST_REPLY: usize = 32 << 20;
/// How long to read on after a failed write, for the reason why the service closed the connection.
const READ_AFTER_FAILED_WRITE: Duration = Duration::from_millis(250);
/// The free space for each read.
const READ_STEP: usize = 16 << 10;

/// A connection.
pub struct Connection {
    peer: Peer,
    client: Rc<ClientState<ServiceBackend>>,
    inner: RefCell<Inner>,
    /// Wakes the driver when there is something to send, or when the connection is given up.
    wake: Notify,
    /// Notified when a reply becomes overdue.
    overdue: Notify,
    /// The term of the leader that this client has logged in to.
    term: Cell<Option<u64>>,
    /// Whether the watchers know that they may have missed events before this connection.
    has_told_missed: Cell<bool>,
}

struct Inner {
    /// The commands of the next write.
    out: Vec<u8>,
    /// How many bytes were moved from `out` to the writer so far.
    taken: u64,
    /// How many of these the system has accepted.
    written: u64,
    pending: VecDeque<PendingReply>,
    /// When to check for overdue replies.
    check_at: Instant,
    /// How old the oldest request is when its reply is overdue.
    overdue_after: Duration,
    received_at: Instant,
    /// Why the driver must end.
    given_up: Option<ConnectError>,
    error: Option<ConnectError>,
}

struct PendingReply {
    caller: oneshot::Sender<Result<BytesFrame, NoReply>>,
    /// The wait that a grant in this reply settles.
    wait: Option<WaitKey>,
    sent_at: Instant,
    due_at: Instant,
    /// The position after the command's last byte on this connection. A command that was not sent whole has no effect.
    end: u64,
}

impl Connection {
    pub(super) fn new(peer: Peer, client: Rc<ClientState<ServiceBackend>>) -> Connection {
        let now = Instant::now();
        let inner = Inner {
            out: Vec::new(),
            taken: 0,
            written: 0,
            pending: VecDeque::new(),
            check_at: now + QUIET,
            overdue_after: OVERDUE,
            received_at: now,
            given_up: None,
            error: None,
        };
        let (wake, overdue, term, has_told_missed) =
            (Notify::new(), Notify::new(), Cell::new(None), Cell::new(false));
        Connection { peer, client, inner: RefCell::new(inner), wake, overdue, term, has_told_missed }
    }

    /// Notes the term of the leader that answers on this connection, and how long it took to answer.
    pub(super) fn logged_in(&self, term: Option<u64>, round_trip: Duration) {
        self.term.set(term);
        self.inner.borrow_mut().overdue_after = OVERDUE.max(OVERDUE_ROUND_TRIPS * round_trip);
    }

    /// Notes that all sessions and watches of the client are attached, and its watchers are told that they may have missed events.
    pub(super) fn attached(&self) {
        self.has_told_missed.set(true);
    }

    pub(super) fn term(&self) -> Option<u64> {
        self.term.get()
    }

    /// Waits until a reply becomes overdue.
    pub(super) async fn until_overdue(&self) {
        self.overdue.notified().await;
    }

    /// Returns how long the oldest request has waited, if its reply is overdue.
    pub(super) fn overdue(&self) -> Option<Duration> {
        let inner = self.inner.borrow();
        let waited = inner.pending.front()?.sent_at.elapsed();
        Some(waited).filter(|waited| *waited >= inner.overdue_after)
    }

    /// Breaks the connection.
    pub(super) fn give_up(&self, why: ConnectError) {
        self.inner.borrow_mut().given_up = Some(why);
        self.wake.notify_one();
    }

    /// Sends a command and returns its reply. The command is sent even if the future is never polled.
    pub(super) fn request(
        &self,
        command: &Command,
        timeout: Duration,
    ) -> impl Future<Output = Result<BytesFrame, NoReply>> + use<> {
        let reply = self.send(command, timeout, None);
        async move {
            match reply.await {
                Ok(reply) => reply,
                // Only the end of the keeper's runtime drops a pending reply.
                Err(_) => std::future::pending().await,
            }
        }
    }

    /// Sends a command and reads its reply.
    pub(super) async fn call<T>(
        &self,
        command: &Command,
        read: impl FnOnce(&BytesFrame) -> Result<T, Unexpected>,
    ) -> Result<T, Failure> {
        self.call_within(CALL_TIMEOUT, command, read).await
    }

    pub(super) async fn call_within<T>(
        &self,
        timeout: Duration,
        command: &Command,
        read: impl FnOnce(&BytesFrame) -> Result<T, Unexpected>,
    ) -> Result<T, Failure> {
        self.read(self.request(command, timeout).await?, read)
    }

    pub(super) async fn acquire(&self, acquire: &Acquire) -> Result<AcquireReply, Failure> {
        let wait = acquire.caller.number.filter(|_| acquire.patience == Patience::Wait);
        let wait = wait.map(|number| (acquire.caller.session, number));
        let reply = self.send(&Command::acquire(acquire)?, CALL_TIMEOUT, wait);
        match reply.await {
            Ok(reply) => self.read(reply?, wire::acquire_reply),
            Err(_) => std::future::pending().await,
        }
    }

    fn read<T>(
        &self,
        reply: BytesFrame,
        read: impl FnOnce(&BytesFrame) -> Result<T, Unexpected>,
    ) -> Result<T, Failure> {
        let reply = wire::accepted(reply).map_err(|error| {
            if let ReplyError::NotLeader(_) = error {
                // The next connection finds the node that leads.
                self.give_up(ConnectError::transient(error.to_string()));
            }
            self.failure_of(error)
        })?;
        read(&reply).map_err(|unexpected| self.unexpected(unexpected))
    }

    /// The failure of a call with this error reply.
    pub(super) fn failure_of(&self, error: ReplyError) -> Failure {
        error.failure(&self.peer)
    }

    /// The failure of a call with a reply that this build does not understand.
    pub(super) fn unexpected(&self, Unexpected(what): Unexpected) -> Failure {
        self.peer.unexpected(what)
    }

    fn send(
        &self,
        command: &Command,
        timeout: Duration,
        wait: Option<WaitKey>,
    ) -> oneshot::Receiver<Result<BytesFrame, NoReply>> {
        let (caller, reply) = oneshot::channel();
        let mut inner = self.inner.borrow_mut();
        if let Some(error) = &inner.error {
            drop(caller.send(Err(NoReply { error: error.clone(), may_have_taken_effect: false })));
            return reply;
        }
        command.encode(&mut inner.out);
        let (sent_at, end) = (Instant::now(), inner.taken + inner.out.len() as u64);
        let due_at = sent_at + timeout;
        inner.pending.push_back(PendingReply { caller, wait, sent_at, due_at, end });
        inner.check_at = inner.check_at.min(due_at).min(sent_at + inner.overdue_after);
        self.wake.notify_one();
        reply
    }

    /// Sends and receives until the connection breaks. Returns the reason.
    pub(super) async fn drive(&self, stream: Stream) -> ConnectError {
        let Err(error) = self.transfer(stream).await;
        let error = error.at(&self.peer);
        let mut inner = self.inner.borrow_mut();
        inner.error = Some(error.clone());
        let (pending, written) = (std::mem::take(&mut inner.pending), inner.written);
        drop(inner);
        for PendingReply { caller, end, .. } in pending {
            drop(caller.send(Err(NoReply { error: error.clone(), may_have_taken_effect: end <= written })));
        }
        error
    }

    async fn transfer(&self, stream: Stream) -> Result<std::convert::Infallible, ConnectError> {
        let Stream { mut reader, writer, is_encrypted } = stream;
        let mut outgoing = Outgoing { writer, is_encrypted, bytes: Vec::new(), sent: 0, is_flushed: true };
        let mut incoming = BytesMut::new();
        let mut check = pin!(sleep_until(self.inner.borrow().check_at));
        loop {
            if let Some(why) = self.inner.borrow_mut().given_up.take() {
                return Err(why);
            }
            if outgoing.is_sent() {
                self.take(outgoing.next());
            }
            let check_at = self.inner.borrow().check_at;
            if check.deadline() != check_at {
                check.as_mut().reset(check_at);
            }
            incoming.reserve(READ_STEP);
            // Read replies that have arrived before checking for overdue ones.
            tokio::select! {
                biased;
                () = self.wake.notified() => {}
                (written, outcome) = outgoing.send(), if !outgoing.is_done() => {
                    self.inner.borrow_mut().written += written as u64;
                    if let Err(error) = outcome {
                        let reason = self.read_reason(reader, incoming).await;
                        return Err(reason.unwrap_or_else(|| stream_error(error, &TLS)));
                    }
                }
                read = reader.read_buf(&mut incoming) => self.received(read, &mut incoming)?,
                () = &mut check => self.check_overdue()?,
            }
        }
    }

    fn take(&self, outgoing: &mut Vec<u8>) {
        let mut inner = self.inner.borrow_mut();
        std::mem::swap(&mut inner.out, outgoing);
        inner.taken += outgoing.len() as u64;
    }

    /// Reads on after a failed write: the service may have sent why it closed the connection, such as a TLS alert.
    async fn read_reason(&self, mut reader: Reader, mut incoming: BytesMut) -> Option<ConnectError> {
        let reading = async {
            loop {
                let read = reader.read_buf(&mut incoming).await;
                if let Err(error) = self.received(read, &mut incoming) {
                    return error;
                }
            }
        };
        timeout(READ_AFTER_FAILED_WRITE, reading).await.ok().filter(ConnectError::is_permanent)
    }

    /// Fails if a call has timed out. Reports a reply that is overdue. Sends a PING if nothing was received for long.
    fn check_overdue(&self) -> Result<(), ConnectError> {
        let now = Instant::now();
        let mut inner = self.inner.borrow_mut();
        let timed_out = inner.pending.iter().filter(|pending| pending.due_at <= now);
        if let Some(sent_at) = timed_out.map(|pending| pending.sent_at).min() {
            return Err(ConnectError::no_answer(now - sent_at));
        }
        let overdue_after = inner.overdue_after;
        if inner.pending.front().is_some_and(|oldest| oldest.sent_at + overdue_after <= now) {
            self.overdue.notify_one();
        }
        let overdue_at = inner.pending.iter().map(|pending| pending.sent_at + overdue_after).find(|at| *at > now);
        let next_due = inner.pending.iter().map(|pending| pending.due_at).chain(overdue_at).min();
        let quiet_at = inner.received_at + QUIET;
        inner.check_at = next_due.unwrap_or(quiet_at.max(now + QUIET / 2));
        if next_due.is_none() && quiet_at <= now {
            drop(inner);
            drop(self.send(&Command::new(&["PING"]), CALL_TIMEOUT, None));
        }
        Ok(())
    }

    /// Handles all frames that have arrived whole.
    fn received(&self, read: io::Result<usize>, incoming: &mut BytesMut) -> Result<(), ConnectError> {
        if read.map_err(|error| stream_error(error, &TLS))? == 0 {
            return Err(ConnectError::closed());
        }
        self.inner.borrow_mut().received_at = Instant::now();
        loop {
            match decode_bytes_mut(incoming) {
                Ok(Some((frame, _, _))) => self.handle(frame)?,
                Ok(None) if incoming.len() > LONGEST_REPLY => {
                    return Err(Unexpected("an endless reply".to_owned()).into());
                }
                Ok(None) => return Ok(()),
                // A TLS alert: the service expects TLS and was sent a plain command.
                Err(_) if incoming.starts_with(&[0x15, 0x03]) => {
                    return Err(SecurityError::Encrypted.connect_error(&TLS));
                }
                Err(error) => return Err(Unexpected(format!("an unreadable reply ({error})")).into()),
            }
        }
    }

    fn handle(&self, frame: BytesFrame) -> Result<(), Unexpected> {
        if let BytesFrame::Push { data, .. } = &frame {
            let push = wire::push(data)?;
            if let Some(Push::Event(_)) = push {
                self.end_closed_watches();
                // Before the first event of a new connection, watchers must learn that they have missed others.
                if !self.has_told_missed.replace(true) {
                    self.client.note_missed_events();
                }
            }
            push.into_iter().for_each(|push| self.client.handle_push(push));
            return Ok(());
        }
        let pending = self.inner.borrow_mut().pending.pop_front();
        let Some(PendingReply { caller, wait, .. }) = pending else {
            return Err(Unexpected::instead_of("a push", &frame));
        };
        // The next push may end this grant, so settle the wait here: the task of its caller runs later.
        if let Some(key) = wait
            && let Ok(AcquireReply::Granted(token)) = wire::acquire_reply(&frame)
        {
            self.client.settle(key, Ok(token));
        }
        drop(caller.send(Ok(frame)));
        Ok(())
    }

    fn end_closed_watches(&self) {
        for prefix in self.client.watchers.borrow_mut().forget_closed() {
            let command = Command::new(&["LOCK", "UNWATCH"]).prefix(&prefix);
            drop(self.send(&command, CALL_TIMEOUT, None));
        }
    }
}

impl RemoteConnection for Connection {
    fn is_broken(&self) -> bool {
        let inner = self.inner.borrow();
        inner.error.is_some() || inner.given_up.is_some()
    }
}

/// The commands that are being written, and how far.
struct Outgoing {
    writer: Writer,
    /// An encrypted stream must be flushed. After a failed write it is unknown how much of it was sent.
    is_encrypted: bool,
    bytes: Vec<u8>,
    sent: usize,
    is_flushed: bool,
}

impl Outgoing {
    fn is_sent(&self) -> bool {
        self.sent == self.bytes.len()
    }

    fn is_done(&self) -> bool {
        self.is_sent() && self.is_flushed
    }

    /// Returns the buffer for the next commands.
    fn next(&mut self) -> &mut Vec<u8> {
        self.bytes.clear();
        self.sent = 0;
        &mut self.bytes
    }

    /// Writes or flushes once. Returns how many more bytes may have been sent.
    ///
    /// # Cancellation
    ///
    /// Every byte that the stream accepted is counted.
    async fn send(&mut self) -> (usize, io::Result<()>) {
        let rest = &self.bytes[self.sent..];
        if rest.is_empty() {
            let flushed = self.writer.flush().await;
            self.is_flushed = true;
            return (0, flushed);
        }
        match self.writer.write(rest).await {
            Ok(accepted) => {
                self.sent += accepted;
                self.is_flushed = !self.is_encrypted;
                (accepted, Ok(()))
            }
            Err(error) if self.is_encrypted => (rest.len(), Err(error)),
            Err(error) => (0, Err(error)),
        }
    }
}

type Reader = Box<dyn AsyncRead + Unpin>;
type Writer = Box<dyn AsyncWrite + Unpin>;

/// A stream to the service.
pub(super) struct Stream {
    pub(super) reader: Reader,
    pub(super) writer: Writer,
    pub(super) is_encrypted: bool,
}

/// Opens connections.
pub(super) struct Dialer {
    pub(super) config: Config,
    /// The contents of the TLS files, until an attempt fails permanently.
    tls: RefCell<Option<Arc<ClientConfig>>>,
    /// The node to try first: the one that led last.
    next: Cell<usize>,
    /// A node that did not answer, which is tried last.
    silent: Cell<Option<usize>>,
    /// The cluster that the client was connected to last.
    cluster: RefCell<Option<String>>,
}

impl Dialer {
    pub(super) fn new(config: Config) -> Dialer {
        let (tls, next, silent, cluster) = Default::default();
        Dialer { config, tls, next, silent, cluster }
    }

    pub(super) fn address(&self, node: usize) -> &Address {
        &self.config.addresses[node]
    }

    /// Returns the nodes to try, in this order, and whether each must lead. A node that does not lead relays to the one that
    /// does. That is slower, so it is the last resort.
    pub(super) fn attempts(&self) -> Vec<(usize, bool)> {
        let nodes = self.config.addresses.len();
        if nodes == 1 {
            return vec![(0, false)];
        }
        let silent = self.silent.get();
        let answering = (0..nodes).map(|at| (self.next.get() + at) % nodes).filter(|node| Some(*node) != silent);
        let direct = answering.clone().map(|node| (node, true));
        let relayed = answering.map(|node| (node, false));
        direct.chain(relayed).chain(silent.map(|node| (node, false))).collect()
    }

    /// Returns the other nodes than this one.
    pub(super) fn others(&self, node: usize) -> impl Iterator<Item = usize> + use<> {
        (0..self.config.addresses.len()).filter(move |other| *other != node)
    }

    /// Makes the next connection begin with this node.
    pub(super) fn try_first(&self, node: usize) {
        self.next.set(node);
    }

    /// Notes whether a node does not answer.
    pub(super) fn set_silent(&self, node: Option<usize>) {
        self.silent.set(node);
    }

    pub(super) fn is_silent(&self, node: usize) -> bool {
        self.silent.get() == Some(node)
    }

    /// Notes the cluster that the client is connected to.
    pub(super) fn set_cluster(&self, cluster: Option<String>) {
        self.cluster.replace(cluster);
    }

    /// Returns the cluster that the client was connected to last.
    pub(super) fn cluster(&self) -> Option<String> {
        self.cluster.borrow().clone()
    }

    pub(super) async fn dial(&self, node: usize) -> Result<Stream, ConnectError> {
        let address = self.address(node);
        let tls = match &self.config.tls {
            Some(tls) => Some((tls.name.as_ref().unwrap_or(&address.host), self.load(tls)?)),
            None => None,
        };
        #[cfg(feature = "_simulation")]
        if let Some(connecting) = crate::simulation::connect(&address.host, address.port) {
            let unreached = |error: io::Error| ConnectError::unreachable(&error).because(Arc::new(error));
            let crate::simulation::Stream { reader, writer } = connecting.await.map_err(unreached)?;
            return Ok(Stream { reader, writer, is_encrypted: false });
        }
        let stream = connect_tcp(&address.host, address.port).await?;
        let Some((name, files)) = tls else {
            let (reader, writer) = stream.into_split();
            return Ok(Stream { reader: Box::new(reader), writer: Box::new(writer), is_encrypted: false });
        };
        let (reader, writer) = split(encrypt(stream, files, name, &TLS).await?);
        Ok(Stream { reader: Box::new(reader), writer: Box::new(writer), is_encrypted: true })
    }

    /// Makes the next attempt read the TLS files again.
    pub(super) fn forget_files(&self) {
        *self.tls.borrow_mut() = None;
    }

    fn load(&self, tls: &Tls) -> Result<Arc<ClientConfig>, ConnectError> {
        let mut loaded = self.tls.borrow_mut();
        if loaded.is_none() {
            *loaded = Some(tls.load().map_err(|error| error.connect_error(&TLS))?);
        }
        Ok(loaded.clone().unwrap_or_else(|| unreachable!("it is loaded")))
    }
}
