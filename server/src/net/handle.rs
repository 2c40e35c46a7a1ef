//! A handle to the service for other threads. A caller that is dropped while it waits leaves nothing queued or held.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use palisade_core::Event;
use tokio::sync::{mpsc, oneshot};

use super::resp::RespMetrics;
use super::server::{Recipient, Server};
use super::unread::{Account, Charge, Unread};
use crate::node::{ConnectionId, NodeReport, Principal, Refused, RequestContext, RequestId, Response, check_metrics};
use crate::request::Request;

/// The service has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Unavailable;

/// Numbers about the service, for operators.
pub(crate) struct ServiceReport {
    pub(crate) node: NodeReport,
    pub(crate) resp: RespMetrics,
    /// Other members that this node has a connection to.
    pub(crate) connected_members: usize,
}

/// A message to the service's thread.
enum ServiceRequest {
    Request(ConnectionId, RequestContext, Request, oneshot::Sender<Response>),
    Watch(ConnectionId, RequestContext, String, EventSender, oneshot::Sender<Response>),
    Disconnected { connection: ConnectionId, delivered: bool },
    Report(oneshot::Sender<ServiceReport>),
}

/// A handle to the service's thread, for any thread.
#[derive(Clone)]
pub(crate) struct ServiceHandle {
    // As many requests can be under way as the HTTP server accepts.
    requests: mpsc::UnboundedSender<ServiceRequest>,
    unread: Arc<Unread>,
    connections: Arc<AtomicU64>,
}

/// The requests that wait for the service's thread.
pub(crate) struct ServiceRequests(mpsc::UnboundedReceiver<ServiceRequest>);

/// A request under way. Its end is reported, with whether the caller has the response.
struct OpenRequest {
    connection: ConnectionId,
    requests: mpsc::UnboundedSender<ServiceRequest>,
    is_delivered: bool,
}

impl Drop for OpenRequest {
    fn drop(&mut self) {
        let (connection, delivered) = (self.connection, self.is_delivered);
        // A service that has ended needs no notice.
        drop(self.requests.send(ServiceRequest::Disconnected { connection, delivered }));
    }
}

impl ServiceHandle {
    pub(crate) fn new(server: &Server) -> (ServiceHandle, ServiceRequests) {
        let (requests, received) = mpsc::unbounded_channel();
        let (unread, connections) = (server.unread.clone(), server.connection_numbers());
        (ServiceHandle { requests, unread, connections }, ServiceRequests(received))
    }

    fn open(&self) -> OpenRequest {
        let connection = ConnectionId(self.connections.fetch_add(1, Ordering::Relaxed) + 1);
        OpenRequest { connection, requests: self.requests.clone(), is_delivered: false }
    }

    /// Sends a request, and returns the response.
    ///
    /// # Cancellation
    ///
    /// Dropped before it is ready, an acquire leaves the queue, and a grant is released. The grant of a numbered
    /// request stays: its repeat gets the same token.
    pub(crate) async fn request(&self, context: RequestContext, request: Request) -> Result<Response, Unavailable> {
        let mut open = self.open();
        let (reply, response) = oneshot::channel();
        let message = ServiceRequest::Request(open.connection, context, request, reply);
        self.requests.send(message).map_err(|_| Unavailable)?;
        let response = response.await.map_err(|_| Unavailable)?;
        open.is_delivered = true;
        Ok(response)
    }

    /// Watches the locks whose names begin with `prefix`, as far as the client may see them. At most `backlog` events
    /// wait to be read. The inner error is the node's refusal.
    pub(crate) async fn watch(
        &self,
        context: RequestContext,
        prefix: String,
        backlog: usize,
    ) -> Result<Result<Watch, Refused>, Unavailable> {
        let open = self.open();
        let account = self.unread.account(context.principal.user_name());
        let (sender, events, missed) = event_channel(backlog, context.principal.clone(), account);
        let (reply, response) = oneshot::channel();
        let message = ServiceRequest::Watch(open.connection, context, prefix, sender, reply);
        self.requests.send(message).map_err(|_| Unavailable)?;
        Ok(match response.await.map_err(|_| Unavailable)? {
            Response::Refused(refused) => Err(refused),
            _ => Ok(Watch { events, missed, _open: Some(open) }),
        })
    }

    /// Checks whether a client may see the service's metrics.
    pub(crate) fn may_report(context: &RequestContext) -> Result<(), Refused> {
        check_metrics(&context.principal)
    }

    pub(crate) async fn report(&self) -> Result<ServiceReport, Unavailable> {
        let (reply, report) = oneshot::channel();
        self.requests.send(ServiceRequest::Report(reply)).map_err(|_| Unavailable)?;
        report.await.map_err(|_| Unavailable)
    }
}

impl ServiceRequests {
    /// Passes requests to the node, on the service's thread.
    pub(crate) async fn run(mut self, server: Rc<Server>) {
        while let Some(request) = self.0.recv().await {
            match request {
                ServiceRequest::Request(connection, context, request, reply) => {
                    server.connect_as(connection, context, Recipient::Http(reply));
                    server.request(RequestId { connection, number: 0 }, request);
                }
                ServiceRequest::Watch(connection, context, prefix, events, reply) => {
                    server.connect_as(connection, context, Recipient::Watch(events, Some(reply)));
                    server.request(RequestId { connection, number: 0 }, Request::Watch { prefix });
                }
                ServiceRequest::Disconnected { connection, delivered } => server.disconnect(connection, delivered),
                ServiceRequest::Report(reply) => drop(reply.send(server.report())),
            }
        }
    }
}

/// The service's end of a watch.
pub(super) struct EventSender {
    principal: Principal,
    events: mpsc::Sender<Option<UnreadEvent>>,
    missed: Arc<AtomicU64>,
    account: Account,
    /// Bytes of events that wait to be read.
    unread: Arc<AtomicUsize>,
}

/// An event that waits to be read.
struct UnreadEvent {
    event: Arc<Event>,
    unread: Arc<AtomicUsize>,
    bytes: usize,
    _charge: Charge,
}

impl Drop for UnreadEvent {
    fn drop(&mut self) {
        self.unread.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl EventSender {
    /// Returns whether the watcher's user was changed or removed.
    pub(super) fn is_revoked(&self) -> bool {
        self.principal.is_revoked()
    }

    /// Sends an event, or counts it as missed.
    pub(super) fn send(&self, event: &Arc<Event>) {
        let bytes = weight(event);
        let is_over = self.account.is_over(self.unread.load(Ordering::Relaxed) + bytes);
        if self.missed.load(Ordering::Acquire) == 0 && self.events.capacity() > 1 && !is_over {
            self.unread.fetch_add(bytes, Ordering::Relaxed);
            let (event, unread, charge) = (event.clone(), self.unread.clone(), self.account.charge(bytes));
            drop(self.events.try_send(Some(UnreadEvent { event, unread, bytes, _charge: charge })));
        } else if self.missed.fetch_add(1, Ordering::AcqRel) == 0 {
            drop(self.events.try_send(None));
        }
    }
}

/// Returns the approximate size of an event in bytes.
fn weight(event: &Event) -> usize {
    const FRAME: usize = 160;
    FRAME
        + match event {
            Event::Queued { locks, .. }
            | Event::LeftQueue { locks, .. }
            | Event::Granted { locks, .. }
            | Event::GrantEnded { locks, .. }
            | Event::Withheld { locks, .. }
            | Event::DelayEnded { locks, .. } => locks.iter().map(|lock| lock.as_str().len()).sum(),
            Event::Published { lock, value, .. } => lock.as_str().len() + value.as_bytes().len(),
            Event::Resized { lock, .. } => lock.as_str().len(),
            _ => 0,
        }
}

/// An item of a watch.
#[derive(Debug, PartialEq)]
pub(crate) enum WatchItem {
    Event(Arc<Event>),
    /// The number of events that the watcher has missed.
    Missed(u64),
}

/// The watcher's end of a watch, which ends when this is dropped.
pub(crate) struct Watch {
    events: mpsc::Receiver<Option<UnreadEvent>>,
    missed: Arc<AtomicU64>,
    _open: Option<OpenRequest>,
}

impl Watch {
    /// Waits for the next item; `None` when the service has ended, or the user was changed or removed.
    pub(crate) async fn next(&mut self) -> Option<WatchItem> {
        Some(match self.events.recv().await? {
            Some(unread) => WatchItem::Event(unread.event.clone()),
            None => WatchItem::Missed(self.missed.swap(0, Ordering::AcqRel)),
        })
    }
}

type EventReceiver = mpsc::Receiver<Option<UnreadEvent>>;

/// Returns both ends of a watch. The channel has room for the backlog and for the notice of missed events.
fn event_channel(
    backlog: usize,
    principal: Principal,
    account: Account,
) -> (EventSender, EventReceiver, Arc<AtomicU64>) {
    let (events, receiver) = mpsc::channel(backlog + 1);
    let missed = Arc::new(AtomicU64::new(0));
    let sender = EventSender { principal, events, missed: missed.clone(), account, unread: Arc::default() };
    (sender, receiver, missed)
}

#[cfg(test)]
mod tests {
    use palisade_core::LockName;

    use super::*;

    fn watched(backlog: usize, account: Account) -> (EventSender, Watch) {
        let (sender, events, missed) = event_channel(backlog, Principal::Anyone, account);
        (sender, Watch { events, missed, _open: None })
    }

    fn resized(limit: u32, name: &str) -> Arc<Event> {
        Arc::new(Event::Resized { lock: LockName::new(name).expect("a name"), limit })
    }

    #[tokio::test]
    async fn a_slow_watcher_gets_the_number_of_missed_events_and_continues() {
        let (sender, mut watch) = watched(3, Unread::new(1 << 20, 10).account(None));
        for number in 0..9 {
            sender.send(&resized(number, "a"));
        }
        for number in 0..3 {
            assert_eq!(watch.next().await, Some(WatchItem::Event(resized(number, "a"))));
        }
        assert_eq!(watch.next().await, Some(WatchItem::Missed(6)));
        sender.send(&resized(9, "a"));
        assert_eq!(watch.next().await, Some(WatchItem::Event(resized(9, "a"))));
    }

    #[tokio::test]
    async fn a_watcher_misses_events_when_too_many_bytes_are_unread_in_all() {
        let unread = Unread::new(16 << 10, 100);
        let (sender, mut watch) = watched(1000, unread.account(None));
        let (other, _watch) = watched(1000, unread.account(None));
        let event = resized(1, &"x".repeat(400));
        for _ in 0..500 {
            sender.send(&event);
            other.send(&event);
        }
        let mut seen = 0;
        let missed = loop {
            match watch.next().await {
                Some(WatchItem::Event(_)) => seen += 1,
                Some(WatchItem::Missed(missed)) => break missed,
                None => panic!("the watch goes on"),
            }
        };
        assert_eq!(seen + missed, 500);
        assert!(seen < 40, "{seen} events of 560 bytes were kept");
        sender.send(&event);
        assert!(matches!(watch.next().await, Some(WatchItem::Event(_))), "it goes on");
    }
}
