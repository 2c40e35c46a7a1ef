//! The service at work, on one thread: lines are read, commands become entries, what is durable is answered. A second
//! thread writes.

mod audit;
mod bounds;
mod connection;
mod connections;
mod door;
mod far;
mod greeting;
mod hangup;
mod info;
mod line;
mod meaning;
mod owners;
mod pace;
mod permission;
mod show;
mod state;
mod tally;
mod tokens;
mod transport;
mod unread;
mod wait;
mod waiters;
mod wheel;
mod who;
mod writer;

use std::cell::{Cell, RefCell};
use std::future::{Future, pending};
use std::io;
use std::panic;
use std::path::PathBuf;
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use palisade_core::{Answer, Command, Limits, Refusal, Token};
use thiserror::Error;
use tokio::net::TcpListener;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::task::{JoinSet, spawn_local};
use tokio::time::{Instant, MissedTickBehavior};

use crate::access::Users;
use crate::http::{self, Entrance, Http};
use crate::replica::{Replica, ReplicaError};
use crate::sign::{KeyError, Signer};
use crate::storage::disk::{Disk, RealDisk};
use crate::storage::{StorageError, Store};
use crate::tls::Tls;
use audit::Origin;
pub use bounds::Bounds;
use line::Line;
use owners::Owners;
use state::{Caller, State, Waited};
use tokens::TokenBlock;
use unread::Unread;
use waiters::Waiters;
use writer::{Writer, Written};

pub(crate) use audit::Audit;
pub(crate) use connections::{ConnectionLimit, Counted, TooMany};
pub(crate) use far::{Far, Measures, Seen, Unavailable};
pub(crate) use hangup::{closed, probe, reset};
pub(crate) use pace::Paces;
pub(crate) use state::code;
pub(crate) use tally::Histogram;
pub(crate) use unread::SHARE;
pub(crate) use wait::Grant;
pub(crate) use who::{AFTER_A_GUESS, Asker, GUESSES, NOT_SIGNING, NotLetIn, Refused, Who, log_in};

/// How often deadlines are looked at.
const TICK: Duration = Duration::from_millis(20);
/// How many bytes are read at once.
const AT_ONCE: usize = 16 << 10;
/// How long clients have to take their last answers when the service stops.
const GRACE: Duration = Duration::from_secs(5);

/// What the service needs to know.
#[derive(Debug, Clone, Default)]
pub struct Config {
    /// Where its files are.
    pub data_dir: PathBuf,
    /// What the rules accept; without it, what they accepted before.
    pub limits: Option<Limits>,
    /// What clients may use.
    pub bounds: Bounds,
    /// Who may use it; without it, everybody may do everything.
    pub users: Option<Users>,
    /// How its lines are encrypted, if they are.
    pub tls: Option<Tls>,
    /// Who signs tokens, if they can be signed.
    pub signer: Option<Signer>,
    /// Gives only tokens above this one, and starts even if the end of the log is missing.
    pub raise_tokens_above: Option<Token>,
}

impl Config {
    /// The defaults, with files in this directory.
    pub fn new(data_dir: impl Into<PathBuf>) -> Config {
        Config { data_dir: data_dir.into(), ..Config::default() }
    }
}

/// Where clients come in.
#[derive(Debug)]
pub struct Listeners {
    /// The fast protocol.
    pub resp: TcpListener,
    /// HTTP, if it is wanted.
    pub http: Option<Http>,
}

impl From<TcpListener> for Listeners {
    fn from(resp: TcpListener) -> Listeners {
        Listeners { resp, http: None }
    }
}

/// Why the service does not run, or not any more.
#[derive(Debug, Error)]
pub enum ServiceError {
    /// Its directory cannot be had.
    #[error(transparent)]
    Directory(StorageError),
    /// Its files.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// What is in them.
    #[error(transparent)]
    Replica(#[from] ReplicaError),
    /// The keys by which it signs.
    #[error(transparent)]
    Keys(#[from] KeyError),
    /// The tokens cannot be raised so far.
    #[error("{0}")]
    Refused(Refusal),
    /// The system.
    #[error("{0}")]
    Io(#[from] io::Error),
}

struct Service<D: Disk> {
    state: RefCell<State<D>>,
    /// There is something to do.
    wake: Notify,
    bounds: Bounds,
    users: Option<Users>,
    tls: Option<Tls>,
    connections: ConnectionLimit,
    unread: Arc<Unread>,
    paces: Paces,
    lines: RefCell<Vec<Weak<Line>>>,
    /// Where what comes from a client is put before it is added to what came before.
    came: RefCell<Box<[u8]>>,
    is_closing: Cell<bool>,
}

impl<D: Disk> Service<D> {
    fn open(disk: D, config: Config) -> Result<(Rc<Self>, mpsc::UnboundedReceiver<Written>), ServiceError> {
        let raise_above = config.raise_tokens_above.map(Token::get);
        let (store, found) = Store::open(disk.clone(), raise_above)?;
        // Tokens up to the watermark may have been given out: going on above those raises nothing.
        if let Some(above) = config.raise_tokens_above.filter(|above| above.get() > found.watermark.tokens) {
            above.check_raise().map_err(ServiceError::Refused)?;
        }
        if let Some(signer) = &config.signer {
            signer.begin()?;
        }
        let mut replica = Replica::new(1, &[1], hash_key(), &found)?;
        let tokens = TokenBlock::new(found.watermark, raise_above);
        drop(found);
        replica.stand();
        let (writer, written) = Writer::start(disk, store)?;
        let mut state = State::new(replica, writer, tokens);
        state.limits = config.limits;
        state.signer = config.signer;
        let bounds = config.bounds;
        state.owners = Owners::new(config.users.as_ref().map(|_| bounds.sessions_per_user));
        state.waiters = Waiters::new(bounds.waiters, bounds.waiters_per_user);
        state.users = config.users.clone();
        let is_guarded = config.tls.is_some() || config.users.is_some();
        let connections = bounds.of_connections(bounds.connections, bounds.connections_per_user, is_guarded);
        let service = Service {
            state: RefCell::new(state),
            wake: Notify::new(),
            unread: Unread::new(bounds.unread_total, bounds.connections),
            bounds,
            users: config.users,
            tls: config.tls,
            connections: ConnectionLimit::new(connections, false),
            paces: Paces::new(),
            lines: RefCell::default(),
            came: RefCell::new(vec![0; AT_ONCE].into()),
            is_closing: Cell::new(false),
        };
        Ok((Rc::new(service), written))
    }

    /// Has a command carried out that may have to wait; `wait` is told how that ends.
    async fn ask_from(
        &self,
        origin: Origin,
        command: Command,
        wait: Option<oneshot::Sender<Waited>>,
    ) -> Result<Answer, Refusal> {
        let (sender, answer) = oneshot::channel();
        self.state.borrow_mut().submit(command, Caller::Task(origin, sender, wait));
        self.wake.notify_one();
        match answer.await {
            Ok(answer) => answer,
            // The service has ended, and this task with it.
            Err(_) => pending().await,
        }
    }

    /// Remembers a line, to tell it when the service stops.
    fn note(&self, line: &Rc<Line>) {
        let mut lines = self.lines.borrow_mut();
        if lines.len() > 2 * self.connections.len() {
            lines.retain(|line| line.strong_count() > 0);
        }
        lines.push(Rc::downgrade(line));
    }

    /// From now on nothing more is asked; what was asked is answered.
    fn close(&self) {
        self.is_closing.set(true);
        self.lines.borrow().iter().filter_map(Weak::upgrade).for_each(|line| line.behind.notify_one());
    }

    /// Users were changed or removed: their connections are closed, and they lose what they may not wait for any more.
    fn users_changed(&self) {
        self.lines.borrow().iter().filter_map(Weak::upgrade).for_each(|line| line.look_who());
        let mut state = self.state.borrow_mut();
        if state.replica.holds_office() {
            state.end_forbidden_waits();
        }
        self.wake.notify_one();
    }

    /// Whether nobody is left to be answered.
    fn is_deserted(&self) -> bool {
        self.lines.borrow().iter().all(|line| line.strong_count() == 0)
    }

    /// Does what there is to do, until it cannot any more.
    async fn work(self: Rc<Self>, mut written: mpsc::UnboundedReceiver<Written>) -> ServiceError {
        loop {
            if let Err(why) = self.turn(&mut written).await {
                return why;
            }
        }
    }

    /// Does what there is to do, and waits for more.
    async fn turn(&self, written: &mut mpsc::UnboundedReceiver<Written>) -> Result<(), ServiceError> {
        self.state.borrow_mut().turn()?;
        let is_busy = self.state.borrow().is_busy();
        let report = tokio::select! {
            biased;
            report = written.recv() => match report {
                Some(report) => Some(report),
                None => return Err(io::Error::other("the thread that writes has ended").into()),
            },
            () = self.wake.notified() => None,
            () = tokio::task::yield_now(), if is_busy => None,
        };
        let mut report = report.or_else(|| written.try_recv().ok());
        while let Some(written_now) = report {
            self.state.borrow_mut().note(written_now)?;
            report = written.try_recv().ok();
        }
        Ok(())
    }
}

/// Serves clients on listeners, until a write fails. Must be called within a `tokio` runtime with I/O and time, and
/// within a local set.
///
/// # Errors
///
/// Files that cannot be used; a write that failed, after which nothing is answered any more.
pub async fn serve(config: Config, listeners: impl Into<Listeners>) -> Result<(), ServiceError> {
    serve_until(config, listeners.into(), || (), pending()).await
}

/// The same, until it is told to stop: then nobody is let in any more, what was asked is answered, and the lines are
/// closed. `ready` is called when clients are served.
///
/// # Errors
///
/// As [`serve`].
pub async fn serve_until(
    config: Config,
    listeners: Listeners,
    ready: impl FnOnce(),
    stop: impl Future<Output = ()>,
) -> Result<(), ServiceError> {
    let disk = RealDisk::open_alone(config.data_dir.clone(), config.raise_tokens_above.is_some());
    let disk = disk.map_err(ServiceError::Directory)?;
    serve_on(disk, config, listeners, ready, stop).await
}

/// The same on another disk than that of the configuration's directory. Keys for signing stay in that directory.
///
/// # Errors
///
/// As [`serve`].
pub async fn serve_on(
    disk: impl Disk,
    config: Config,
    listeners: Listeners,
    ready: impl FnOnce(),
    stop: impl Future<Output = ()>,
) -> Result<(), ServiceError> {
    let Listeners { resp, http } = listeners;
    let (service, written) = Service::open(disk, config)?;
    let doors = spawn_local(door::accept(service.clone(), resp));
    let (far, errands) = Far::new(service.unread.clone());
    spawn_local(far::attend(service.clone(), errands));
    // It ends together with this call.
    let signer = service.state.borrow().signer.clone();
    let entrance =
        Entrance { users: service.users.clone(), tls: service.tls.clone(), bounds: service.bounds.clone() };
    let _http = http.map(|http| http::start(http, far, entrance, signer)).transpose()?;
    // A task among those of the clients: it has its turn behind all that have asked for something, and before the system
    // is asked for more.
    let mut work = JoinSet::new();
    work.spawn_local(service.clone().work(written));
    let mut ready = Some(ready);
    let mut stop = pin!(stop);
    let mut tick = tokio::time::interval(TICK);
    // Who was stopped need not make up for it.
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut end_at: Option<Instant> = None;
    let mut users = service.users.as_ref().map(Users::subscribe);
    loop {
        if service.state.borrow().replica.holds_office()
            && let Some(ready) = ready.take()
        {
            ready();
        }
        if end_at.is_some_and(|at| service.is_deserted() || Instant::now() >= at) {
            service.state.borrow_mut().return_tokens()?;
            return Ok(());
        }
        tokio::select! {
            biased;
            () = &mut stop, if end_at.is_none() => {
                doors.abort();
                service.close();
                end_at = Some(Instant::now() + GRACE);
            }
            _ = tick.tick() => {
                service.state.borrow_mut().tick();
                service.wake.notify_one();
            }
            () = changed(&mut users) => service.users_changed(),
            Some(ended) = work.join_next() => return Err(match ended {
                Ok(why) => why,
                Err(error) => panic::resume_unwind(error.into_panic()),
            }),
        }
    }
}

/// Waits until users are changed.
async fn changed(users: &mut Option<watch::Receiver<()>>) {
    let is_told = match users {
        Some(users) => users.changed().await.is_ok(),
        None => false,
    };
    if !is_told {
        pending().await
    }
}

/// A number that strangers cannot guess, so that they cannot choose names that collide.
fn hash_key() -> u64 {
    use std::hash::{BuildHasher, Hasher, RandomState};
    RandomState::new().build_hasher().finish()
}
