//! A service of one node in virtual time. The tests decide when its writes become durable.

use std::sync::Arc;

use super::*;
use crate::access::{Rule, User, Users, Verb};
use crate::storage::Recovered;

const CLIENT: ConnectionId = ConnectionId(1);

struct Fixture {
    node: Node,
    now: Moment,
    /// The writes that are not durable yet.
    writes: Vec<u64>,
    last_number: u64,
    replies: BTreeMap<u64, Response>,
}

impl Fixture {
    /// Starts a node that leads, with one client.
    fn new(config: NodeConfig, principal: Principal) -> Fixture {
        let config = NodeConfig { compact_after: usize::MAX, ..config };
        let seeds = Seeds { hash_key: 7, session_ids: 7 };
        let node = Node::new(config, &Identity::alone(1, 1), &Recovered::default(), seeds, None).unwrap();
        let (now, writes, replies) = (Moment::ZERO, Vec::new(), BTreeMap::new());
        let mut fixture = Fixture { node, now, writes, last_number: 0, replies };
        fixture.persist();
        assert!(fixture.node.is_leading);
        fixture.connect(principal);
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
        let mut has_more = true;
        while has_more {
            let output = self.node.take_output();
            self.writes.extend(output.writes.iter().map(|(number, _)| number));
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
        self.replies.remove(&number).unwrap()
    }
}

fn ttl(ms: u64) -> Ttl {
    Ttl::from_ms(ms).unwrap()
}

#[test]
fn requests_that_a_lost_leadership_leaves_unanswered_do_not_count_for_the_user() {
    let rule = Rule { verbs: vec![Verb::Acquire], prefix: String::new() };
    let users = Users::new(vec![User::new("ci", None, vec![rule]).unwrap()]).unwrap();
    let principal = Principal::User(users.find("ci").unwrap());
    let config = NodeConfig { users: Some(users), sessions_per_user: 1, ..NodeConfig::default() };
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
