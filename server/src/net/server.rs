//! The node and the connections to its clients: requests go in, replies and pushes come out.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, mpsc, oneshot, watch};

use super::audit::Audit;
use super::bounds::Bounds;
use super::connection_limit::ConnectionLimit;
use super::handle::{EventSender, ServiceReport};
use super::rate_limit::RateLimiters;
use super::resp::{Announcement, Channels, ReplyWriter, RespMetrics, SentScripts, render};
use super::unread::Unread;
use crate::access::{User, Users, Verb};
use crate::node::{
    ConnectionId, Input, Message, Moment, Node, Output, Push, Recipients, Refused, RequestContext, RequestId,
    Response,
};
use crate::peers::{Administer, Relay, RelayedClient};
use crate::request::{Query, Request};
use crate::sign::Signer;
use crate::tls::{Accepted, Tls};

/// How many bytes are read from a connection at once.
const READ_BYTES: usize = 16 << 10;

/// The node, and everything that its connections share.
pub(crate) struct Server {
    node: RefCell<Node>,
    /// Signalled when the node has something to do.
    pub(crate) wake: Notify,
    began: Instant,
    pub(crate) bounds: Bounds,
    pub(crate) users: Option<Users>,
    pub(crate) tls: Option<Tls>,
    pub(crate) signer: Option<Signer>,
    pub(super) connection_limit: ConnectionLimit,
    pub(crate) unread: Arc<Unread>,
    pub(crate) limiters: Arc<RateLimiters>,
    last_connection: Arc<AtomicU64>,
    recipients: RefCell<HashMap<ConnectionId, Recipient>>,
    to_flush: RefCell<Vec<Rc<ReplyWriter>>>,
    /// Shared by all connections: bytes are read into it, then appended to the connection's buffer.
    pub(super) read_buffer: RefCell<Box<[u8]>>,
    pub(super) metrics: RefCell<RespMetrics>,
    /// The scripts that clients have sent.
    pub(super) scripts: RefCell<SentScripts>,
    pub(super) channels: RefCell<Channels>,
    is_closing: Cell<bool>,
    /// When the node wants the next tick.
    wake_at: Cell<Moment>,
    /// The member that leads, as far as this node knows.
    pub(crate) leader: watch::Sender<Option<u64>>,
    /// Passes clients on to the node that leads. Set on a node of a cluster.
    relay: RefCell<Option<Weak<dyn Relay>>>,
    /// Carries out the requests of operators.
    admin: RefCell<Option<Weak<dyn Administer>>>,
    /// Takes the connections of HTTP clients that another node relays. Set if this node offers HTTP.
    relayed_http: RefCell<Option<mpsc::Sender<RelayedConnection>>>,
}

/// A connection from another node, and the client that it relays.
pub(super) type RelayedConnection = (Accepted, RelayedClient);

/// The recipient of a connection's messages.
pub(super) enum Recipient {
    Resp(Rc<ReplyWriter>),
    /// One request over HTTP.
    Http(oneshot::Sender<Response>),
    /// A watch over HTTP, and the reply to its request.
    Watch(EventSender, Option<oneshot::Sender<Response>>),
}

impl Server {
    pub(crate) fn new(
        node: Node,
        bounds: Bounds,
        users: Option<Users>,
        tls: Option<Tls>,
        signer: Option<Signer>,
    ) -> Rc<Server> {
        let is_guarded = tls.is_some() || users.is_some();
        let connections = bounds.of_connections(bounds.connections, bounds.connections_per_user, is_guarded);
        Rc::new(Server {
            node: RefCell::new(node),
            wake: Notify::new(),
            began: Instant::now(),
            unread: Unread::new(bounds.unread_total, bounds.connections),
            bounds,
            users,
            tls,
            signer,
            connection_limit: ConnectionLimit::new(connections, false),
            limiters: Arc::new(RateLimiters::new()),
            last_connection: Arc::default(),
            recipients: RefCell::default(),
            to_flush: RefCell::default(),
            read_buffer: RefCell::new(vec![0; READ_BYTES].into()),
            metrics: RefCell::default(),
            scripts: RefCell::default(),
            channels: RefCell::default(),
            is_closing: Cell::new(false),
            wake_at: Cell::new(Moment::ZERO),
            leader: watch::Sender::new(None),
            relay: RefCell::new(None),
            admin: RefCell::new(None),
            relayed_http: RefCell::new(None),
        })
    }

    /// Returns the node's time.
    pub(crate) fn now(&self) -> Moment {
        self.began.elapsed()
    }

    /// Returns the time until the node's next tick.
    pub(crate) fn until_tick(&self) -> Duration {
        self.wake_at.get().saturating_sub(self.now())
    }

    /// Returns the counter of connection ids, for other threads.
    pub(crate) fn connection_numbers(&self) -> Arc<AtomicU64> {
        self.last_connection.clone()
    }

    /// Passes an input to the node.
    pub(crate) fn step(&self, input: Input) {
        self.node.borrow_mut().step(self.now(), input);
        self.wake.notify_one();
    }

    pub(crate) fn take_output(&self) -> Output {
        let mut node = self.node.borrow_mut();
        let output = node.take_output();
        self.wake_at.set(output.wake_at);
        let leader = node.leader();
        self.leader.send_if_modified(|known| std::mem::replace(known, leader) != leader);
        output
    }

    /// Makes this node pass on clients while another node leads.
    pub(crate) fn set_relay(&self, relay: Rc<dyn Relay>) {
        // The other one has the server, so that neither would ever be freed.
        self.relay.replace(Some(Rc::downgrade(&relay)));
    }

    pub(super) fn relay(&self) -> Option<Rc<dyn Relay>> {
        self.relay.borrow().as_ref().and_then(Weak::upgrade)
    }

    pub(crate) fn set_admin(&self, admin: Rc<dyn Administer>) {
        self.admin.replace(Some(Rc::downgrade(&admin)));
    }

    pub(super) fn admin(&self) -> Option<Rc<dyn Administer>> {
        self.admin.borrow().as_ref().and_then(Weak::upgrade)
    }

    pub(super) fn set_relayed_http(&self, connections: mpsc::Sender<RelayedConnection>) {
        self.relayed_http.replace(Some(connections));
    }

    pub(crate) fn offers_http(&self) -> bool {
        self.relayed_http.borrow().is_some()
    }

    /// Passes the connection of a relayed client to the HTTP thread. If too many wait there, it is closed.
    pub(crate) fn pass_to_http(&self, stream: Accepted, client: RelayedClient) {
        if let Some(connections) = &*self.relayed_http.borrow() {
            drop(connections.try_send((stream, client)));
        }
    }

    /// Returns whether another node leads.
    pub(super) fn is_relaying(&self) -> bool {
        self.node.borrow().is_following()
    }

    pub(crate) fn with_node<T>(&self, f: impl FnOnce(&mut Node) -> T) -> T {
        f(&mut self.node.borrow_mut())
    }

    pub(super) fn connect(&self, context: RequestContext, recipient: Recipient) -> ConnectionId {
        let connection = ConnectionId(self.last_connection.fetch_add(1, Ordering::Relaxed) + 1);
        self.connect_as(connection, context, recipient);
        connection
    }

    pub(super) fn connect_as(&self, connection: ConnectionId, context: RequestContext, recipient: Recipient) {
        self.recipients.borrow_mut().insert(connection, recipient);
        self.step(Input::Connected { connection, context });
    }

    pub(super) fn disconnect(&self, connection: ConnectionId, delivered: bool) {
        self.recipients.borrow_mut().remove(&connection);
        self.channels.borrow_mut().disconnected(connection);
        self.step(Input::Disconnected { connection, delivered });
    }

    pub(super) fn request(&self, id: RequestId, request: Request) {
        if matches!(request, Request::Query(Query::Claims { .. })) && self.signer.is_none() {
            self.reply(id, Response::Refused(Refused::NotSigning));
            return self.wake.notify_one();
        }
        self.step(Input::Request { id, request });
    }

    /// Sends the output's messages, as far as they can be sent at once.
    pub(crate) fn deliver(&self, output: &mut Output) {
        for event in output.audit.drain(..) {
            Audit::of(&event.context, &self.limiters).record(&event);
        }
        for message in output.messages.drain(..) {
            match message {
                Message::Reply(id, response) => self.reply(id, response),
                Message::Push(to, push) => self.push(&to, &push),
            }
        }
    }

    fn reply(&self, id: RequestId, response: Response) {
        let response = match response {
            Response::Claims(claims) => {
                let signed = self.signer.as_ref().and_then(|signer| signer.sign(*claims));
                signed.map_or(Response::Refused(Refused::NotSigning), Response::Signed)
            }
            other => other,
        };
        let mut recipients = self.recipients.borrow_mut();
        match recipients.get_mut(&id.connection) {
            Some(Recipient::Resp(writer)) => {
                let writer = writer.clone();
                drop(recipients);
                let form = writer.take_form(id.number);
                let announcement = form.as_ref().and_then(|form| form.announcement(&response)).cloned();
                let rendered = match &form {
                    Some(form) => form.render(response),
                    None => Err(response),
                };
                let reply = rendered.unwrap_or_else(|response| render::response(response, writer.is_detailed()));
                self.answer(&writer, id.number, &reply);
                if let Some(announcement) = announcement {
                    self.announce(&announcement);
                }
            }
            Some(Recipient::Watch(_, reply)) => {
                if let Some(reply) = reply.take() {
                    drop(reply.send(response));
                }
            }
            Some(Recipient::Http(_)) => {
                // A handler that was dropped reports that itself.
                if let Some(Recipient::Http(reply)) = recipients.remove(&id.connection) {
                    drop(reply.send(response));
                }
            }
            None => {}
        }
    }

    /// Sends a message to the clients that have subscribed to its channel, and may take the lock.
    fn announce(&self, announcement: &Announcement) {
        let recipients = self.recipients.borrow();
        for (connection, message) in self.channels.borrow().messages(announcement) {
            let Some(Recipient::Resp(writer)) = recipients.get(&connection) else { continue };
            let may_take = |user: &User| user.may(Verb::Acquire, announcement.lock.as_str());
            if writer.principal().user().is_none_or(may_take) && writer.send_message(&message) {
                self.to_flush.borrow_mut().push(writer.clone());
            }
        }
    }

    /// Answers a request of a RESP connection.
    pub(super) fn answer(&self, writer: &Rc<ReplyWriter>, number: u64, reply: &super::resp::Reply) {
        self.metrics.borrow_mut().answered(reply);
        if writer.answer(number, reply) {
            self.to_flush.borrow_mut().push(writer.clone());
        }
    }

    fn push(&self, to: &Recipients, push: &Push) {
        let recipients = self.recipients.borrow();
        // Rendered once for all recipients: with details, and without.
        let mut rendered = [None, None];
        for connection in to {
            match recipients.get(connection) {
                Some(Recipient::Resp(writer)) => {
                    let is_detailed = writer.is_detailed();
                    let reply =
                        rendered[usize::from(is_detailed)].get_or_insert_with(|| render::push(push, is_detailed));
                    if let Some(reply) = reply
                        && writer.push(reply)
                    {
                        self.to_flush.borrow_mut().push(writer.clone());
                    }
                }
                Some(Recipient::Watch(events, _)) => {
                    if let Push::Event(event) = push {
                        events.send(event);
                    }
                }
                Some(Recipient::Http(_)) | None => {}
            }
        }
    }

    /// Writes what was answered to the sockets.
    pub(crate) fn flush(&self) {
        for writer in self.to_flush.take() {
            writer.flush();
        }
    }

    pub(super) fn report(&self) -> ServiceReport {
        let connected_members = self.relay().map_or(0, |relay| relay.connected_members());
        let node = self.node.borrow().report(self.now());
        ServiceReport { node, resp: self.metrics.borrow().clone(), connected_members }
    }

    /// Stops reading requests. Those that were read are answered.
    pub(crate) fn close(&self) {
        self.is_closing.set(true);
        self.step(Input::Closing);
        self.resp_writers(|writer| writer.changed.notify_one());
    }

    pub(super) fn is_closing(&self) -> bool {
        self.is_closing.get()
    }

    /// Disconnects clients whose users were changed or removed, and ends their waits.
    pub(crate) fn users_changed(&self) {
        self.resp_writers(|writer| writer.check_principal());
        self.recipients.borrow_mut().retain(|_, recipient| match recipient {
            Recipient::Watch(events, _) => !events.is_revoked(),
            Recipient::Resp(_) | Recipient::Http(_) => true,
        });
        self.step(Input::UsersChanged);
    }

    /// Disconnects every client: this node leads no more. Replies that were not sent may never come.
    pub(crate) fn disconnect_all(&self) {
        self.resp_writers(|writer| {
            writer.close();
            writer.changed.notify_one();
        });
        self.recipients.borrow_mut().retain(|_, recipient| matches!(recipient, Recipient::Resp(_)));
    }

    fn resp_writers(&self, each: impl Fn(&ReplyWriter)) {
        for recipient in self.recipients.borrow().values() {
            if let Recipient::Resp(writer) = recipient {
                each(writer);
            }
        }
    }

    /// Returns whether all RESP connections are closed.
    pub(crate) fn has_no_connections(&self) -> bool {
        self.connection_limit.len() == 0
    }
}
