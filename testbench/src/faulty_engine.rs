//! An engine between a keeper and a real engine. It fails, loses or holds back calls and replies at the test's command.
//! No wait here is a sleep, unless a standstill is the fault itself.

use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use palisade::engine::{
    Acquired, Cancelled, Engine, Failure, Forced, Guarantees, LockInfo, Notice, Opened, Raised, Released,
    Unavailable, Watched,
};
use palisade::{BootInstant, SignedToken};
use palisade_core::{Acquire, Label, LockName, RequestNo, SessionId, Token, Ttl, Value};
use tokio::sync::{Notify, mpsc, watch};

use crate::bounded::within;

/// A call of a keeper.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Call {
    OpenSession,
    KeepAlive,
    CloseSession,
    DetachSession,
    Acquire,
    Cancel,
    Release,
    Publish,
    Sign,
    ForceRelease,
    Resize,
    RaiseTokens,
    Inspect,
    List,
    Watch,
}

/// A fault of a call.
#[derive(Debug, Clone)]
pub enum Act {
    /// It never arrives, and fails at once.
    Fail,
    /// It is denied.
    Deny,
    /// It is carried out, and then fails as if its reply had been lost.
    LoseAnswer,
    /// It arrives when the gate is opened.
    HoldRequest(Gate),
    /// It is carried out at once, and answered when the gate is opened.
    HoldAnswer(Gate),
    /// It is carried out, and before it is answered the keeper's thread stops for this time, like that of a
    /// suspended process.
    Stop(Duration),
}

/// A gate at which a call waits until the test opens it.
#[derive(Debug, Clone)]
pub struct Gate(watch::Sender<Stand>);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stand {
    Alone,
    Reached,
    Open,
}

impl Gate {
    fn new() -> Gate {
        Gate(watch::Sender::new(Stand::Alone))
    }

    /// Waits until a call is at the gate.
    pub async fn reached(&self) {
        self.at_least(Stand::Reached).await;
    }

    /// Lets all calls pass, also later ones.
    pub fn open(&self) {
        self.0.send_replace(Stand::Open);
    }

    async fn pass(&self) {
        self.0.send_modify(|stand| *stand = (*stand).max(Stand::Reached));
        self.at_least(Stand::Open).await;
    }

    async fn at_least(&self, wanted: Stand) {
        let mut stands = self.0.subscribe();
        if stands.wait_for(|stand| *stand >= wanted).await.is_err() {
            unreachable!("the gate itself keeps the sender");
        }
    }
}

/// How the connection to the engine is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// Every call fails at once.
    Failing,
    /// No call, reply or notice arrives until the connection is mended; then all of them do.
    Silent,
}

#[derive(Default)]
struct Plan {
    next: HashMap<Call, VecDeque<Act>>,
    always: HashMap<Call, Act>,
    cut: Option<Cut>,
    begun: HashMap<Call, usize>,
    running: HashMap<Call, usize>,
    most_running: HashMap<Call, usize>,
    ttls: Vec<Ttl>,
    opened_at: Vec<BootInstant>,
}

/// The faults of one or more engines, as the test sets them. Clones share them.
#[derive(Clone)]
pub struct EngineFaults {
    plan: Arc<Mutex<Plan>>,
    changed: Arc<Notify>,
    declares: fn(Guarantees) -> Guarantees,
}

impl Default for EngineFaults {
    fn default() -> EngineFaults {
        EngineFaults::declaring(|guarantees| guarantees)
    }
}

impl EngineFaults {
    /// Returns faults whose engines declare other guarantees than the engines behind them.
    pub fn declaring(declares: fn(Guarantees) -> Guarantees) -> EngineFaults {
        EngineFaults { plan: Arc::default(), changed: Arc::default(), declares }
    }

    /// Wraps an engine.
    pub fn wrap(&self, engine: Box<dyn Engine>) -> FaultyEngine {
        FaultyEngine { engine, faults: self.clone() }
    }

    /// Adds a fault for the next call of this kind that has none yet.
    pub fn next(&self, call: Call, act: Act) {
        self.plan().next.entry(call).or_default().push_back(act);
    }

    /// Holds back the next request of this kind.
    pub fn hold_request(&self, call: Call) -> Gate {
        let gate = Gate::new();
        self.next(call, Act::HoldRequest(gate.clone()));
        gate
    }

    /// Holds back the reply to the next call of this kind.
    pub fn hold_answer(&self, call: Call) -> Gate {
        let gate = Gate::new();
        self.next(call, Act::HoldAnswer(gate.clone()));
        gate
    }

    /// Sets the fault of all further calls of this kind.
    pub fn always(&self, call: Call, act: Act) {
        self.plan().always.insert(call, act);
    }

    /// Cuts the connection to the engine.
    pub fn cut(&self, cut: Cut) {
        self.plan().cut = Some(cut);
    }

    /// Mends the connection, and removes the faults of [`always`](EngineFaults::always).
    pub fn mend(&self) {
        let mut plan = self.plan();
        plan.cut = None;
        plan.always.clear();
        drop(plan);
        self.changed.notify_waiters();
    }

    /// Returns the number of calls of this kind so far.
    pub fn begun(&self, call: Call) -> usize {
        self.plan().begun.get(&call).copied().unwrap_or(0)
    }

    /// Waits until this number of calls of this kind have been made.
    pub async fn until_begun(&self, call: Call, count: usize) {
        let what = format!("{count} calls of {call:?} were made");
        let waiting = self.until(|plan| plan.begun.get(&call).is_some_and(|begun| *begun >= count));
        within(&what, waiting).await;
    }

    /// Returns the number of calls of this kind that run now.
    pub fn running(&self, call: Call) -> usize {
        self.plan().running.get(&call).copied().unwrap_or(0)
    }

    /// Waits until exactly this number of calls of this kind run.
    pub async fn until_running(&self, call: Call, count: usize) {
        let what = format!("{count} calls of {call:?} run");
        within(&what, self.until(|plan| plan.running.get(&call).copied().unwrap_or(0) == count)).await;
    }

    /// Returns the highest number of calls of this kind that ran at the same time.
    pub fn most_running(&self, call: Call) -> usize {
        self.plan().most_running.get(&call).copied().unwrap_or(0)
    }

    /// Returns the TTLs of the sessions that were opened.
    pub fn ttls(&self) -> Vec<Ttl> {
        self.plan().ttls.clone()
    }

    /// Returns when calls to open a session arrived.
    pub fn opened_at(&self) -> Vec<BootInstant> {
        self.plan().opened_at.clone()
    }

    fn plan(&self) -> MutexGuard<'_, Plan> {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits without a bound: a call of the engine ends when the test lets it.
    async fn until(&self, is_true: impl Fn(&Plan) -> bool) {
        loop {
            let changed = self.changed.notified();
            if is_true(&self.plan()) {
                return;
            }
            changed.await;
        }
    }

    fn begin(&self, call: Call) -> (Running, Option<Act>) {
        let mut plan = self.plan();
        *plan.begun.entry(call).or_default() += 1;
        let running = plan.running.entry(call).or_default();
        *running += 1;
        let running = *running;
        let most = plan.most_running.entry(call).or_default();
        *most = running.max(*most);
        let planned = plan.next.get_mut(&call).and_then(VecDeque::pop_front);
        let act = planned.or_else(|| plan.always.get(&call).cloned());
        drop(plan);
        self.changed.notify_waiters();
        (Running { faults: self.clone(), call }, act)
    }

    /// Waits until the connection is not silent. Fails if it is cut.
    async fn line(&self) -> Result<(), Failure> {
        self.until(|plan| plan.cut != Some(Cut::Silent)).await;
        match self.plan().cut {
            Some(_) => Err(cut()),
            None => Ok(()),
        }
    }
}

fn cut() -> Failure {
    Unavailable::new("the line to the engine is cut").without_effect().into()
}

/// Counts a call until it is answered or dropped.
struct Running {
    faults: EngineFaults,
    call: Call,
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(running) = self.faults.plan().running.get_mut(&self.call) {
            *running -= 1;
        }
        self.faults.changed.notify_waiters();
    }
}

/// An engine with injected faults.
pub struct FaultyEngine {
    engine: Box<dyn Engine>,
    faults: EngineFaults,
}

impl FaultyEngine {
    async fn act<T>(&self, call: Call, ask: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
        let (_running, act) = self.faults.begin(call);
        self.faults.line().await?;
        let answer = match act {
            None => ask.await,
            Some(Act::Fail) => return Err(cut()),
            Some(Act::Deny) => return Err(Failure::Denied("the right was withdrawn".to_owned())),
            Some(Act::LoseAnswer) => {
                drop(ask.await);
                Err(Unavailable::new("the answer was lost").into())
            }
            Some(Act::HoldRequest(gate)) => {
                gate.pass().await;
                ask.await
            }
            Some(Act::Stop(time)) => {
                let answer = ask.await;
                std::thread::sleep(time);
                answer
            }
            Some(Act::HoldAnswer(gate)) => {
                let answer = ask.await;
                gate.pass().await;
                answer
            }
        };
        // A reply that was sent while the connection was silent arrives when it is mended.
        self.faults.until(|plan| plan.cut != Some(Cut::Silent)).await;
        answer
    }
}

/// Forwards notices while the connection is not cut.
async fn pass_on(
    mut notices: mpsc::UnboundedReceiver<Notice>,
    sink: mpsc::UnboundedSender<Notice>,
    faults: EngineFaults,
) {
    loop {
        let notice = notices.recv().await;
        faults.until(|plan| plan.cut.is_none()).await;
        match notice {
            Some(notice) => drop(sink.send(notice)),
            None => return,
        }
    }
}

#[async_trait(?Send)]
impl Engine for FaultyEngine {
    fn guarantees(&self) -> Guarantees {
        (self.faults.declares)(self.engine.guarantees())
    }

    async fn open_session(&self, ttl: Ttl, label: Label) -> Result<Opened, Failure> {
        let asked_at = BootInstant::now();
        let Opened { session, notices, lifeline } =
            self.act(Call::OpenSession, self.engine.open_session(ttl, label)).await?;
        let mut plan = self.faults.plan();
        plan.ttls.push(ttl);
        plan.opened_at.push(asked_at);
        drop(plan);
        let (sink, passed_on) = mpsc::unbounded_channel();
        tokio::task::spawn_local(pass_on(notices, sink, self.faults.clone()));
        Ok(Opened { session, notices: passed_on, lifeline })
    }

    async fn keep_alive(&self, session: SessionId) -> Result<(), Failure> {
        self.act(Call::KeepAlive, self.engine.keep_alive(session)).await
    }

    async fn close_session(&self, session: SessionId) -> Result<(), Failure> {
        self.act(Call::CloseSession, self.engine.close_session(session)).await
    }

    async fn detach_session(&self, session: SessionId) -> Result<(), Failure> {
        self.act(Call::DetachSession, self.engine.detach_session(session)).await
    }

    async fn acquire(&self, ask: Acquire) -> Result<Acquired, Failure> {
        self.act(Call::Acquire, self.engine.acquire(ask)).await
    }

    async fn cancel(&self, session: SessionId, number: RequestNo) -> Result<Cancelled, Failure> {
        self.act(Call::Cancel, self.engine.cancel(session, number)).await
    }

    async fn release(&self, session: SessionId, lock: LockName, token: Token) -> Result<Released, Failure> {
        self.act(Call::Release, self.engine.release(session, lock, token)).await
    }

    async fn publish(&self, session: SessionId, lock: LockName, token: Token, value: Value) -> Result<(), Failure> {
        self.act(Call::Publish, self.engine.publish(session, lock, token, value)).await
    }

    async fn sign(&self, session: SessionId, lock: LockName, token: Token) -> Result<SignedToken, Failure> {
        self.act(Call::Sign, self.engine.sign(session, lock, token)).await
    }

    async fn force_release(
        &self,
        lock: LockName,
        only: Option<Token>,
        by: Label,
        reason: Label,
    ) -> Result<Forced, Failure> {
        self.act(Call::ForceRelease, self.engine.force_release(lock, only, by, reason)).await
    }

    async fn resize(&self, lock: LockName, limit: u32) -> Result<(), Failure> {
        self.act(Call::Resize, self.engine.resize(lock, limit)).await
    }

    async fn raise_tokens(&self, above: Token) -> Result<Raised, Failure> {
        self.act(Call::RaiseTokens, self.engine.raise_tokens(above)).await
    }

    async fn inspect(&self, lock: LockName) -> Result<Option<LockInfo>, Failure> {
        self.act(Call::Inspect, self.engine.inspect(lock)).await
    }

    async fn list(&self, prefix: String) -> Result<Vec<LockInfo>, Failure> {
        self.act(Call::List, self.engine.list(prefix)).await
    }

    async fn watch(&self, prefix: String) -> Result<mpsc::Receiver<Watched>, Failure> {
        self.act(Call::Watch, self.engine.watch(prefix)).await
    }
}
