//! A worker of a long run: it acquires, uses and releases locks of all kinds until it gets the command `leave`, or is killed.

use std::cell::{Cell, RefCell};
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;
use std::{io, panic, process, thread};

use palisade::{BootInstant, Error, Guard, Loss, Options, Palisade, Request, Standing};
use tokio::sync::oneshot;
use tokio::time::sleep;

use super::record::{Fact, Record, Share, now, ns};
use super::{HOT, OTHERS, PERMITS, hot, number_file};
use crate::faulty_disk::Rng;
use crate::fenced_file::{Access, FencedFile};

/// What belongs to a lock alone.
const EXCLUSIVE: Share = Share { takes: 1, of: 1 };
const READS: Share = Share { takes: 1, of: u32::MAX };
const WRITES: Share = Share { takes: u32::MAX, of: u32::MAX };

/// The arguments of a worker.
#[derive(Debug, Clone)]
pub struct Orders {
    /// The URL of the store.
    pub url: String,
    /// The folder with the fenced numbers.
    pub folder: PathBuf,
    /// The file that it appends to.
    pub record: PathBuf,
    /// The seed of its random choices.
    pub seed: u64,
    /// The longest pause between two steps.
    pub pause: Duration,
}

/// A running worker.
pub struct Working {
    leave: oneshot::Sender<()>,
    thread: thread::JoinHandle<()>,
}

impl Working {
    /// Starts it on another thread.
    ///
    /// # Errors
    ///
    /// Its record cannot be made.
    #[allow(clippy::print_stderr, reason = "the record must show why it panicked")]
    pub fn start(orders: Orders) -> io::Result<Working> {
        Record::open(&orders.record)?;
        // A worker that goes on without one of its threads would look like one that waits.
        panic::set_hook(Box::new(|panicked| {
            eprintln!("{panicked}");
            process::exit(101);
        }));
        let (leave, left) = oneshot::channel();
        let thread = thread::spawn(move || work(&orders, left));
        Ok(Working { leave, thread })
    }

    /// Closes its sessions and ends it.
    ///
    /// # Panics
    ///
    /// It has panicked.
    pub fn leave(self) {
        // The send fails only if the worker has panicked, which `join` reports.
        let _ = self.leave.send(());
        self.thread.join().expect("the worker does not panic");
    }
}

fn work(orders: &Orders, left: oneshot::Receiver<()>) {
    let record = Rc::new(Record::open(&orders.record).expect("it was opened before"));
    let worker = |number: u64| Worker {
        record: record.clone(),
        rng: Rng::new(orders.seed.wrapping_mul(31).wrapping_add(number)),
        folder: orders.folder.clone(),
        name: format!("{}-{number}", orders.record.file_name().unwrap_or_default().to_string_lossy()),
        names: Cell::new(0),
        pause: orders.pause,
        client: Rc::default(),
    };
    let (mut one, mut other) = (worker(1), worker(2));
    let clients = [one.client.clone(), other.client.clone()];
    let leaving = async {
        let _ = left.await;
        record.write(&Fact::Closes { at: now() });
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime can be built");
    runtime.block_on(async {
        tokio::select! {
            () = leaving => {}
            ((), ()) = async { tokio::join!(one.go_on(&orders.url), other.go_on(&orders.url)) } => {}
        }
        for client in clients {
            let client = client.borrow_mut().take();
            if let Some(client) = client {
                // If the store is down, the sessions end by their TTL.
                let _ = client.close().await;
            }
        }
    });
}

struct Worker {
    record: Rc<Record>,
    rng: Rng,
    folder: PathBuf,
    name: String,
    names: Cell<u64>,
    pause: Duration,
    /// To be closed when the worker leaves.
    client: Rc<RefCell<Option<Palisade>>>,
}

impl Worker {
    /// Never ends: it is dropped.
    async fn go_on(&mut self, url: &str) {
        loop {
            let palisade = self.connect(url).await;
            self.client.replace(Some(palisade.clone()));
            let mut steps = self.rng.below(300);
            while steps > 0 && self.step(&palisade).await {
                steps -= 1;
                sleep(self.pause.mul_f64(self.rng.below(1000) as f64 / 1000.0)).await;
            }
            if let Err(error) = palisade.close().await {
                self.failed(&error);
            }
        }
    }

    /// Opens a new session. Few have the default TTL of 30 s: a killed worker's locks stay blocked for that long, and again
    /// after each restart of the server, and several such workers may stand in one queue.
    async fn connect(&mut self, url: &str) -> Palisade {
        let mut options = Options::new();
        if self.rng.below(40) > 0 {
            let ttl_ms = [1_500, 2_000, 2_500, 3_000, 4_000][self.rng.below(5)];
            options = options.ttl(Duration::from_millis(ttl_ms)).label(&self.name);
        }
        loop {
            match options.clone().connect(url).await {
                Ok(palisade) => return palisade,
                Err(error) => self.failed(&error),
            }
            sleep(Duration::from_millis(100)).await;
        }
    }

    /// Takes one lock, or several. Returns whether the client is still usable.
    async fn step(&mut self, palisade: &Palisade) -> bool {
        let result = match self.rng.below(20) {
            0..6 => {
                let name = hot(self.rng.below(HOT));
                self.take(palisade.lock(&name), EXCLUSIVE, vec![name]).await
            }
            6..9 => {
                let names = self.set();
                self.take(palisade.lock_all(names.clone()), EXCLUSIVE, names).await
            }
            9..15 => {
                let name = self.new_name();
                self.take(palisade.lock(&name), EXCLUSIVE, vec![name]).await
            }
            15..17 => {
                let name = format!("rw/{}", self.rng.below(OTHERS));
                self.take(palisade.rw_lock(&name).read(), READS, vec![name]).await
            }
            17 => {
                let name = format!("rw/{}", self.rng.below(OTHERS));
                self.take(palisade.rw_lock(&name).write(), WRITES, vec![name]).await
            }
            _ => {
                let name = format!("permits/{}", self.rng.below(OTHERS));
                let takes = self.rng.below(PERMITS as usize) as u32 + 1;
                let share = Share { takes, of: PERMITS };
                self.take(palisade.semaphore(&name, PERMITS).many(takes), share, vec![name]).await
            }
        };
        match result {
            Ok(()) => true,
            Err(error) => {
                self.failed(&error);
                // A store that is down need not be asked all the time.
                sleep(Duration::from_millis(20)).await;
                error.is_retryable()
            }
        }
    }

    /// A name that is used this once.
    fn new_name(&self) -> String {
        self.names.set(self.names.get() + 1);
        format!("new/{}-{}", self.name, self.names.get())
    }

    /// Two hot locks, and perhaps a new name among them.
    fn set(&mut self) -> Vec<String> {
        let first = self.rng.below(HOT);
        let second = (first + 1 + self.rng.below(HOT - 1)) % HOT;
        let mut names = vec![hot(first), hot(second)];
        if self.rng.below(2) == 0 {
            names.insert(self.rng.below(3), self.new_name());
        }
        names
    }

    async fn take<G>(&mut self, request: Request<G>, share: Share, locks: Vec<String>) -> Result<(), Error>
    where
        G: From<Guard> + Deref<Target = Guard>,
    {
        let request = request.dangerous_accept_failover();
        let asked = now();
        let patience = Duration::from_millis(self.rng.below(3_000) as u64);
        let guard = match self.rng.below(10) {
            0..2 => request.try_acquire().await?,
            2..6 => request.acquire_within(patience).await?,
            // The wait is dropped at an arbitrary point.
            6..8 => tokio::time::timeout(patience / 20, request.acquire()).await.ok().transpose()?,
            _ => {
                let id = self.record.next_id();
                self.record.write(&Fact::Waits { id, at: asked, lock: locks[0].clone() });
                let guard = request.acquire().await;
                self.record.write(&Fact::Waited { id, at: now() });
                Some(guard?)
            }
        };
        match guard {
            Some(guard) => self.hold(guard, asked, share, locks).await,
            None => Ok(()),
        }
    }

    async fn hold<G>(&mut self, guard: G, asked: u64, share: Share, locks: Vec<String>) -> Result<(), Error>
    where
        G: Deref<Target = Guard>,
    {
        let (id, told) = (self.record.next_id(), now());
        // It was held at `told` if the guard says so afterwards.
        let token = guard.token()?.get();
        let safe = ns(guard.safe_until());
        let numbers: Vec<String> = locks.iter().filter(|lock| number_file(lock).is_some()).cloned().collect();
        self.record.write(&Fact::Granted { id, asked, told, safe, token, share, locks });
        for lock in numbers {
            if let Some(file) = number_file(&lock) {
                self.count(&guard, &self.folder.join(file), &lock);
            }
        }
        let long = self.rng.below(25) == 0;
        let until = BootInstant::now() + Duration::from_millis(self.rng.below(if long { 2_500 } else { 20 }) as u64);
        while !until.has_passed() && guard.standing() == Standing::Held {
            sleep(until.left().min(Duration::from_millis(100))).await;
            let safe = ns(guard.safe_until());
            if guard.token().is_ok() {
                self.record.write(&Fact::Kept { id, safe });
            }
        }
        if let Standing::Lost(loss) = guard.standing() {
            self.record.write(&Fact::Lost { id, at: now(), why: why(&loss) });
            return Ok(());
        }
        self.record.write(&Fact::Ends { id, at: now() });
        match self.rng.below(3) {
            0 => Ok(()),
            _ => guard.release().await,
        }
    }

    /// Reads and writes the number under the lock, unless a newer holder has sealed it.
    fn count(&self, guard: &Guard, file: &Path, lock: &str) {
        let Ok(token) = guard.token() else { return };
        let mut file = FencedFile::open(file).expect("the number can be opened");
        let Access::Done(number) = file.seal(token).expect("it can be sealed") else { return };
        let Access::Done(number) = file.write(token, number + 1).expect("it can be written") else { return };
        self.record.write(&Fact::Wrote { token: token.get(), number, lock: lock.to_owned() });
    }

    fn failed(&self, error: &Error) {
        let is_retryable = error.is_retryable();
        self.record.write(&Fact::Failed { at: now(), is_retryable, what: error.to_string() });
    }
}

fn why(loss: &Loss) -> String {
    match loss {
        Loss::Expired => "expired".to_owned(),
        Loss::Unreachable { .. } => "unreachable".to_owned(),
        Loss::Paused { .. } => "paused".to_owned(),
        other => format!("{other:?}"),
    }
}
