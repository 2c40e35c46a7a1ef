//! The calls of clients to the fenced counters.

use std::time::Duration;

use super::resource::{Answer, Call, Reply, Request};
use super::world::{World, WorldEvent};

/// How long a client waits for a resource.
const RESOURCE_TIMEOUT: Duration = Duration::from_secs(2);

impl World {
    pub(super) fn call(&mut self, client: usize, incarnation: u64, call: Call) {
        let is_disturbed = !self.are_faults_over.get();
        if is_disturbed && self.rng.below(20) == 0 {
            self.count("fault: request to a resource lost");
            let Call { caller, .. } = call;
            return self
                .schedule_in(RESOURCE_TIMEOUT, WorldEvent::Reply { client, incarnation, caller, reply: None });
        }
        if self.rng.below(10) == 0 {
            let longest = if self.rng.below(4) == 0 { 4 * self.plan.ttl } else { self.plan.ttl };
            let delay = self.random_time(longest);
            self.schedule_in(delay, WorldEvent::Repeat { counter: call.counter, request: call.request });
        }
        // A write may sit in a proxy for a while.
        let delay = match is_disturbed && self.rng.below(15) == 0 {
            true => self.random_time(3 * self.plan.ttl),
            false => self.latency(),
        };
        self.schedule_in(delay, WorldEvent::Request { client, incarnation, call });
    }

    pub(super) fn request(&mut self, client: usize, incarnation: u64, call: Call) {
        let Call { counter, request, caller } = call;
        let reply = self.answer(counter, request);
        // The answer may be lost.
        let is_lost = !self.are_faults_over.get() && self.rng.below(20) == 0;
        let (reply, delay) = if is_lost { (None, RESOURCE_TIMEOUT) } else { (reply, self.latency()) };
        self.schedule_in(delay, WorldEvent::Reply { client, incarnation, caller, reply });
    }

    pub(super) fn answer(&mut self, counter: usize, request: Request) -> Reply {
        if self.rng.below(100) == 0 && !self.are_faults_over.get() {
            self.count("fault: resource restarted");
            self.counters[counter].restart();
        }
        let (answered, is_repeated) = {
            let state = &mut self.counters[counter];
            let before = state.value();
            let answered = state.handle(request);
            let is_repeated =
                matches!((&answered, request), (Ok(Answer::Written(Some(_))), Request::Write(_, Some(_))))
                    && state.value() == before;
            (answered, is_repeated)
        };
        if is_repeated {
            self.count("path: write repeated");
        }
        match answered {
            Ok(answer) => {
                self.note(format_args!("counter {counter}: {request}: {answer}"));
                Some(answer)
            }
            Err(what) => {
                self.fail(format!("{what} (counter {counter})"));
                None
            }
        }
    }
}
