//! A service of one node in virtual time. The tests decide when its writes become durable.

use std::sync::Arc;

use super::*;
use crate::access::{Rule, User, Users, Verb};
use crate::replica::MembershipChange;
use crate::request::Extension;
use crate::storage::Recovered;

const CLIENT: ConnectionId = ConnectionId(1);

struct Fixture {
    node: Node,
    now: Moment,
    /// The writes that are not durable yet.
    writes: Vec<u64>,
    /// Everything that was written.
    written: Recovered,
    last_number: u64,
    replies: BTreeMap<u64, Response>,
}

impl Fixture {
    /// Starts a node that leads, with one client.
    fn new(config: NodeConfig, principal: Principal) -> Fixture {
        let mut fixture = Fixture::on(Recovered::default(), config);
        fixture.persist();
        assert!(fixture.node.is_leading);
        fixture.connect(principal);
        fixture
    }

    /// Starts a node on these files. It does not lead before its vote is durable.
    fn on(written: Recovered, config: NodeConfig) -> Fixture {
        let config = NodeConfig { compact_after: usize::MAX, ..config };
        let seeds = Seeds { hash_key: 7, session_ids: 7 };
        let node = Node::new(config, &Identity::alone(1, 1), &written, seeds, None).unwrap();
        let (now, writes, replies) = (Moment::ZERO, Vec::new(), BTreeMap::new());
        let mut fixture = Fixture { node, now, writes, written, last_number: 0, replies };
        fixture.take_output();
        fixture
    }

    fn connect(&mut self, principal: Principal) {
        let (peer, address) = (Arc::from("client"), [127, 0, 0, 1].into());
        let context = RequestContext { principal, protocol: Protocol::Resp, peer, address };
        self.step(Input::Connected { connection: CLIENT, context });
    }

    /// Handles an input. The writes that follow stay on their way.
    fn step(&mut self, input: Input) {
        self.node.step(self.now, input);
        self.take_output();
    }

    fn take_output(&mut self) {
        let mut has_more = true;
        while has_more {
            let output = self.node.take_output();
            for (number, write) in output.writes {
                self.writes.push(number);
                self.written.hard_state = write.hard_state;
                self.written.records.extend(write.records);
            }
            for message in output.messages {
                if let Message::Reply(id, response) = message {
                    self.replies.insert(id.number, response);
                }
            }
            has_more = output.has_more;
        }
    }

    /// Makes the writes on their way durable, and those that follow from them.
    fn persist(&mut self) {
        self.step(Input::Tick);
        while let Some(number) = self.writes.pop() {
            self.writes.clear();
            self.step(Input::Persisted { number });
        }
    }

    /// Makes only the writes durable that are on their way now.
    fn persist_once(&mut self) {
        let number = self.writes.pop().unwrap();
        self.writes.clear();
        self.step(Input::Persisted { number });
    }

    /// Lets time pass with a tick every 20 ms, while no write becomes durable.
    fn stall(&mut self, ms: u64) {
        for _ in 0..ms / 20 {
            self.now += TICK;
            self.step(Input::Tick);
        }
    }

    /// Lets time pass while writes become durable at once.
    fn pass(&mut self, ms: u64) {
        for _ in 0..ms / 20 {
            self.now += TICK;
            self.persist();
        }
    }

    /// Begins a write that has nothing to do with locks.
    fn begin_write(&mut self) {
        self.request(Request::OpenSession { ttl: ttl(60_000), label: None });
        assert!(!self.writes.is_empty());
    }

    fn is_held(&self) -> bool {
        self.node.machine().lock(&lock()).is_some()
    }

    fn reply_to(&mut self, number: u64) -> Option<Response> {
        self.replies.remove(&number)
    }

    /// Sends a request, and returns its number.
    fn request(&mut self, request: Request) -> u64 {
        self.last_number += 1;
        let id = RequestId { connection: CLIENT, number: self.last_number };
        self.step(Input::Request { id, request });
        self.last_number
    }

    /// Sends a request, and returns the reply once everything is durable.
    fn answer(&mut self, request: Request) -> Response {
        let number = self.request(request);
        self.persist();
        self.reply_to(number).unwrap()
    }
}

fn lock() -> LockName {
    LockName::new("orders").unwrap()
}

/// Takes the lock with a secret, or renews it.
fn take(secret: &str, ms: u64, renews: bool) -> Request {
    Request::take(LockNames::from([lock()]), Secret::new(secret.as_bytes()), ttl(ms), renews)
}

fn extend(secret: &str, time: Extension) -> Request {
    Request::ExtendHeld { locks: LockNames::from([lock()]), secret: Secret::new(secret.as_bytes()), time }
}

/// The requests that extend the lock to 5 s.
fn extensions() -> [Request; 4] {
    let (to, add) = (Extension::For(ttl(5_000)), Extension::Add(4_980));
    [
        extend("mine", to),
        extend("mine", add),
        Request::ExpireHeld { lock: lock(), ttl: ttl(5_000) },
        take("mine", 5_000, true),
    ]
}

fn has_extended(response: &Response) -> bool {
    matches!(response, Response::Matched { locks: 1, others: 0 } | Response::Granted(_))
}

fn started() -> Fixture {
    Fixture::new(NodeConfig::default(), Principal::Anyone)
}

/// A configuration with one user, and the user.
fn with_user(config: NodeConfig) -> (NodeConfig, Principal) {
    let rule = Rule { verbs: vec![Verb::Acquire, Verb::Observe], prefix: String::new() };
    let users = Users::new(vec![User::new("ci", None, vec![rule]).unwrap()]).unwrap();
    let principal = Principal::User(users.find("ci").unwrap());
    (NodeConfig { users: Some(users), ..config }, principal)
}

fn ttl(ms: u64) -> Ttl {
    Ttl::from_ms(ms).unwrap()
}

#[test]
fn requests_that_a_lost_leadership_leaves_unanswered_do_not_count_for_the_user() {
    let (config, principal) = with_user(NodeConfig { sessions_per_user: 1, ..NodeConfig::default() });
    let mut fixture = Fixture::new(config, principal.clone());
    let open = || Request::OpenSession { ttl: ttl(10_000), label: None };
    let id = RequestId { connection: CLIENT, number: 0 };
    // Queued, and not proposed yet.
    fixture.node.step(fixture.now, Input::Request { id, request: open() });
    fixture.node.stop_leading();
    fixture.node.start_leading();
    fixture.connect(principal);
    assert!(matches!(fixture.answer(open()), Response::Opened { .. }));
    assert!(matches!(fixture.answer(open()), Response::Refused(_)));
}

#[test]
fn an_extension_whose_write_outlasts_the_old_deadline_is_kept() {
    for request in extensions() {
        for is_behind_a_write in [false, true] {
            let mut fixture = started();
            assert!(has_extended(&fixture.answer(take("mine", 1_000, false))));
            fixture.pass(980);
            if is_behind_a_write {
                fixture.begin_write();
            }
            let number = fixture.request(request.clone());
            fixture.stall(400);
            assert_eq!(fixture.reply_to(number).map(drop), None);
            fixture.persist();
            assert!(has_extended(&fixture.reply_to(number).unwrap()), "{request:?}");
            fixture.pass(4_960);
            assert!(fixture.is_held(), "{request:?} was acknowledged, and did not last");
            fixture.pass(60);
            assert!(!fixture.is_held(), "{request:?} lasts too long");
        }
    }
}

/// The client does not wait for the reply to its acquire. The session opens after the extension was submitted.
#[test]
fn an_extension_right_behind_its_acquire_is_kept() {
    for request in [extend("mine", Extension::For(ttl(5_000))), take("mine", 5_000, true)] {
        let mut fixture = started();
        let first = fixture.request(take("mine", 1_000, false));
        let second = fixture.request(request);
        fixture.persist_once();
        assert!(has_extended(&fixture.reply_to(first).unwrap()));
        fixture.stall(2_000);
        assert!(fixture.reply_to(second).is_none());
        fixture.persist();
        assert!(has_extended(&fixture.reply_to(second).unwrap()));
        fixture.pass(4_960);
        assert!(fixture.is_held());
        fixture.pass(60);
        assert!(!fixture.is_held());
    }
}

#[test]
fn an_extension_that_fails_delays_the_expiry_no_longer_than_its_write() {
    let mut fixture = started();
    fixture.answer(take("mine", 1_000, false));
    fixture.pass(980);
    // Longer than the limits allow.
    let number = fixture.request(extend("mine", Extension::For(ttl(4_000_000_000))));
    let others = fixture.request(extend("other", Extension::For(ttl(5_000))));
    fixture.stall(400);
    fixture.persist();
    assert!(matches!(fixture.reply_to(number), Some(Response::Refused(_))));
    assert!(!has_extended(&fixture.reply_to(others).unwrap()));
    fixture.pass(40);
    assert!(!fixture.is_held());
}

#[test]
fn an_extension_with_another_secret_does_not_delay_the_expiry() {
    for request in [extend("other", Extension::For(ttl(5_000))), take("other", 5_000, true)] {
        let mut fixture = started();
        fixture.answer(take("mine", 1_000, false));
        fixture.pass(980);
        fixture.request(request);
        fixture.stall(60);
        assert_eq!(fixture.node.expired.len(), 1);
    }
}

/// The expiry waits for a write, or is on its way itself.
#[test]
fn an_extension_after_the_expiry_was_decided_fails() {
    for request in extensions() {
        for is_proposed in [false, true] {
            let mut fixture = started();
            fixture.answer(take("mine", 1_000, false));
            fixture.pass(900);
            if !is_proposed {
                fixture.begin_write();
            }
            fixture.stall(200);
            assert!(fixture.is_held());
            assert_eq!(fixture.node.expired.len(), usize::from(!is_proposed));
            let number = fixture.request(request.clone());
            fixture.persist();
            let response = fixture.reply_to(number).unwrap();
            // An acquire that is applied after the expiry gets a grant of its own.
            let is_regranted = is_proposed && matches!(request, Request::Acquire(_));
            assert_eq!(has_extended(&response), is_regranted, "{request:?}: {response:?}");
            assert_eq!(fixture.is_held(), is_regranted, "{request:?}");
            if is_regranted {
                fixture.pass(4_960);
                assert!(fixture.is_held());
                fixture.pass(60);
                assert!(!fixture.is_held());
            } else {
                assert!(has_extended(&fixture.answer(take("other", 1_000, false))));
            }
        }
    }
}

#[test]
fn a_lost_leadership_forgets_the_extensions_on_their_way() {
    let mut fixture = started();
    fixture.answer(take("mine", 1_000, false));
    fixture.begin_write();
    let id = RequestId { connection: CLIENT, number: 0 };
    fixture.node.step(fixture.now, Input::Request { id, request: extend("mine", Extension::For(ttl(5_000))) });
    fixture.node.stop_leading();
    fixture.node.start_leading();
    fixture.pass(1_040);
    assert!(!fixture.is_held());
}

/// The last entries are applied only when the node leads. Until then a session or a lock that they made seems not to exist.
#[test]
fn a_service_that_starts_answers_nothing_before_it_has_applied_its_log() {
    let (config, principal) = with_user(NodeConfig { sessions_per_user: 2, wait_ms: 1_000, ..NodeConfig::default() });
    let mut before = Fixture::new(config.clone(), principal.clone());
    before.answer(take("mine", 60_000, false));
    let Response::Opened { session, .. } = before.answer(Request::OpenSession { ttl: ttl(60_000), label: None })
    else {
        panic!("the session is not open");
    };
    let locks = LockNames::from([lock()]);
    let secret = Secret::new(b"mine");
    let held = Request::Query(crate::request::Query::Held { locks, secret: Some(secret) });
    type Check = fn(&Response) -> bool;
    let requests: [(Request, Check); 6] = [
        (Request::DropHeld { lock: lock() }, |reply| *reply == Response::Matched { locks: 1, others: 0 }),
        (Request::ExpireHeld { lock: lock(), ttl: ttl(5_000) }, has_extended),
        (extend("mine", Extension::Add(5_000)), has_extended),
        (held, |reply| matches!(reply, Response::Held(held) if held[0].is_some())),
        (
            Request::KeepAlive { sessions: vec![session] },
            |reply| matches!(reply, Response::KeptAlive(kept) if kept[0].is_some()),
        ),
        (Request::Attach { session }, |reply| matches!(reply, Response::Attached { .. })),
    ];
    for (request, is_right) in requests {
        let Recovered { hard_state, records, .. } = &before.written;
        let files = Recovered { hard_state: *hard_state, records: records.clone(), ..Recovered::default() };
        let mut fixture = Fixture::on(files, config.clone());
        fixture.connect(principal.clone());
        let number = fixture.request(request.clone());
        assert_eq!(fixture.reply_to(number), Some(Response::Refused(Refused::NotLeader)), "{request:?}");
        assert!(fixture.node.is_about_to_lead());
        fixture.persist();
        assert!(!fixture.node.is_about_to_lead());
        let reply = fixture.answer(request.clone());
        assert!(is_right(&reply), "{request:?}: {reply:?}");
    }
}

/// The expiry waits for a write, or is on its way itself.
#[test]
fn a_session_whose_expiry_was_decided_cannot_be_attached() {
    for is_proposed in [false, true] {
        let mut fixture = started();
        let opened = fixture.answer(Request::OpenSession { ttl: ttl(1_000), label: None });
        let Response::Opened { session, .. } = opened else { panic!("{opened:?}") };
        fixture.pass(900);
        if !is_proposed {
            fixture.begin_write();
        }
        fixture.stall(200);
        let number = fixture.request(Request::Attach { session });
        fixture.persist();
        let reply = fixture.reply_to(number).unwrap();
        let is_refused = matches!(reply, Response::Refused(Refused::Refusal(Refusal::NoSuchSession { .. })));
        assert!(is_refused, "{reply:?}");
    }
}

/// Each request visits many grants or waiters, and requests of other clients must not wait for all of them.
#[test]
fn requests_that_visit_much_are_answered_in_several_turns() {
    let config = NodeConfig { wait_ms: 60_000, waiters: 1_000, waiters_per_user: 1_000, ..NodeConfig::default() };
    let mut fixture = Fixture::new(config, Principal::Anyone);
    let opened = fixture.answer(Request::OpenSession { ttl: ttl(60_000), label: None });
    let Response::Opened { session, .. } = opened else { panic!("{opened:?}") };
    for number in 1..=400 {
        let is_own = number % 2 == 0;
        let name = if is_own { format!("lock {number}") } else { "orders".to_owned() };
        let want = Want { lock: LockName::new(&name).unwrap(), mode: palisade_core::Mode::Exclusive };
        fixture.request(Request::Acquire(AcquireRequest {
            wants: [want].into_iter().collect(),
            holder: crate::request::Holder::Session(session),
            wait_ms: Some(60_000),
            delay: None,
            number: Some(RequestNo::new(number).unwrap()),
            is_async: true,
            value: None,
            secret: None,
            renews: false,
        }));
    }
    fixture.persist();
    let show = crate::request::Query::Lock { lock: lock(), cursor: 199, count: 1 };
    for request in [Request::Attach { session }, Request::Query(show)] {
        for number in 1_000..1_200 {
            let id = RequestId { connection: CLIENT, number };
            fixture.node.step(fixture.now, Input::Request { id, request: request.clone() });
        }
        let (connection, number) = (ConnectionId(2), 0);
        let context = fixture.node.clients.context(CLIENT).unwrap().clone();
        fixture.node.step(fixture.now, Input::Connected { connection, context });
        let id = RequestId { connection, number };
        fixture
            .node
            .step(fixture.now, Input::Request { id, request: Request::KeepAlive { sessions: vec![session] } });
        let (mut turns, mut answered) = (0, 0);
        while answered < 201 {
            let output = fixture.node.take_output();
            let replies = output.messages.len();
            assert!(replies < 150, "{replies} replies in one turn to {request:?}");
            assert!(output.has_more || answered + replies == 201);
            let is_of_other = |message: &Message| matches!(message, Message::Reply(id, _) if id.connection != CLIENT);
            let has_other = output.messages.iter().any(is_of_other);
            assert_eq!(has_other, turns == 0, "the other client is answered in the first turn");
            turns += 1;
            answered += replies;
        }
        assert!(turns > 1);
    }
}

/// Over HTTP no connection ends with the login.
#[test]
fn a_wait_ends_when_the_secret_of_its_user_is_changed() {
    let (config, principal) =
        with_user(NodeConfig { sessions_per_user: 2, wait_ms: 60_000, ..NodeConfig::default() });
    let users = config.users.clone().unwrap();
    let mut fixture = Fixture::new(NodeConfig { waiters: 10, waiters_per_user: 10, ..config }, principal);
    let holder = fixture.answer(take("mine", 1_000, false));
    assert!(matches!(holder, Response::Granted(_)));
    let Request::Acquire(acquire) = take("other", 60_000, false) else { panic!("an acquire") };
    let waiting = fixture.request(Request::Acquire(AcquireRequest { wait_ms: Some(60_000), ..acquire }));
    fixture.persist();
    assert_eq!(fixture.reply_to(waiting), None);
    let rule = Rule { verbs: vec![Verb::Acquire], prefix: String::new() };
    users.replace(&Users::new(vec![User::new("ci", None, vec![rule]).unwrap()]).unwrap());
    fixture.step(Input::UsersChanged);
    fixture.persist();
    let reply = fixture.reply_to(waiting);
    assert!(matches!(&reply, Some(Response::Refused(Refused::Denied(_)))), "{reply:?}");
    fixture.pass(1_100);
    assert!(!fixture.is_held());
}

/// The thread that serves HTTP looks users up before they change, and its request arrives afterwards.
#[test]
fn a_request_on_its_way_while_its_user_is_changed_is_refused() {
    let (config, principal) = with_user(NodeConfig { sessions_per_user: 2, ..NodeConfig::default() });
    let users = config.users.clone().unwrap();
    let mut fixture = Fixture::new(config, principal);
    let rule = Rule { verbs: vec![Verb::Acquire], prefix: String::new() };
    users.replace(&Users::new(vec![User::new("ci", None, vec![rule]).unwrap()]).unwrap());
    fixture.step(Input::UsersChanged);
    let reply = fixture.answer(take("mine", 1_000, false));
    assert!(matches!(&reply, Response::Refused(Refused::Denied(_))), "{reply:?}");
    assert!(!fixture.is_held());
}

/// Delivers the messages between nodes, and makes their writes durable, until there is nothing left to do.
fn exchange(nodes: &mut [Node]) {
    loop {
        let outputs: Vec<_> = nodes.iter_mut().map(Node::take_output).collect();
        if outputs.iter().all(|output| output.writes.is_empty() && output.peer_messages.is_empty()) {
            return;
        }
        for (node, output) in nodes.iter_mut().zip(&outputs) {
            let now = node.now;
            output.writes.iter().for_each(|(number, _)| node.step(now, Input::Persisted { number: *number }));
        }
        for message in outputs.into_iter().flat_map(|output| output.peer_messages) {
            let node = &mut nodes[message.to() as usize - 1];
            node.step(node.now, Input::Received(message));
        }
    }
}

/// It was elected before it knew that it has lost its vote.
#[test]
fn a_leader_without_a_vote_does_not_remove_itself() {
    let member = |id: u64| Member::new(format!("node{id}"), format!("node{id}:7422"));
    let founders = Membership::founded_by((1..=3).map(|id| (id, member(id))).collect());
    let mut nodes: Vec<_> = (1..=3)
        .map(|id| {
            let identity = Identity { member: id, founders: founders.clone(), ..Identity::alone(1, id) };
            let seeds = Seeds { hash_key: 7, session_ids: id };
            Node::new(NodeConfig::default(), &identity, &Recovered::default(), seeds, None).unwrap()
        })
        .collect();
    nodes[0].replica.campaign();
    exchange(&mut nodes);
    let leaving = Member { is_leaving: true, ..member(1) };
    let change =
        MembershipChange { learners: vec![1], members: [(1, leaving)].into(), ..MembershipChange::default() };
    assert!(nodes[0].replica.change_members(&change));
    exchange(&mut nodes);
    assert!(nodes[0].is_leader() && nodes[0].membership().voters == [2, 3]);

    let last = nodes[0].replica.last_index();
    assert_eq!(nodes[0].remove_member("node1"), Err(ChangeRefused::NotLeader));
    assert_eq!(nodes[0].replica.last_index(), last);
    exchange(&mut nodes);
    assert!(!nodes[0].is_leader(), "another member leads");
}
