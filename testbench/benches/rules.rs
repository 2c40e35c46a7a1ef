//! What the rules cost: `scripts/bench rules`. Prints a table; medians of several samples each.
//!
//! Everything goes through `Machine::apply` with numbered requests, as a host uses it. The machine stands still for
//! nothing else, so the figures are what one core can do.

#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::fmt::Write;
use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use palisade_core::{
    Acquire, Answer, Caller, Command, Label, Limits, LockName, Machine, Patience, RequestNo, SessionId, Token, Ttl,
    Waiting,
};

/// Counts the bytes that are asked for.
struct Counting;

static IN_USE: AtomicUsize = AtomicUsize::new(0);

// The only way to count allocations is to be the allocator: both calls go straight on to the system's.
#[allow(unsafe_code)]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        IN_USE.fetch_add(layout.size(), Ordering::Relaxed);
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        IN_USE.fetch_sub(layout.size(), Ordering::Relaxed);
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A client: its session, and the number of its last request.
struct Client {
    session: SessionId,
    number: u64,
    numbered: bool,
}

impl Client {
    fn open(machine: &mut Machine) -> Client {
        let session = SessionId::new(u64::from(machine.session_count()) + 1).unwrap();
        let (ttl, label) = (Ttl::from_ms(10_000).unwrap(), Label::new("host-17 pid 4211"));
        let open = Command::OpenSession { session, ttl, label };
        match machine.apply(open).answer {
            Ok(Answer::Opened { session }) => Client { session, number: 0, numbered: true },
            other => panic!("{other:?}"),
        }
    }

    fn caller(&mut self) -> Caller {
        self.number += 1;
        let number = self.numbered.then(|| RequestNo::new(self.number).unwrap());
        Caller { session: self.session, number }
    }

    fn acquire(&mut self, machine: &mut Machine, lock: &LockName) -> Token {
        let ask = Acquire::exclusive(self.caller(), lock.clone());
        match machine.apply(Command::Acquire(ask)).answer {
            Ok(Answer::Granted { token }) => token,
            other => panic!("{other:?}"),
        }
    }

    fn wait(&mut self, machine: &mut Machine, lock: &LockName) {
        let ask = Acquire { patience: Patience::Wait, ..Acquire::exclusive(self.caller(), lock.clone()) };
        assert!(matches!(machine.apply(Command::Acquire(ask)).answer, Ok(Answer::Queued { .. })));
    }

    /// Gives up the last request.
    fn cancel(&mut self, machine: &mut Machine) {
        let waiting = Waiting::Request(RequestNo::new(self.number).unwrap());
        let cancel = Command::Cancel { caller: self.caller(), waiting };
        assert_eq!(machine.apply(cancel).answer, Ok(Answer::Done));
    }

    fn release(&mut self, machine: &mut Machine, lock: &LockName, token: Token) {
        let release = Command::Release { caller: Some(self.caller()), lock: lock.clone(), token };
        assert_eq!(black_box(machine.apply(release)).answer, Ok(Answer::Done));
    }
}

fn name(text: String) -> LockName {
    LockName::new(&text).unwrap()
}

/// A machine in which so many sessions hold one lock each.
fn machine_with(held: u32) -> Machine {
    let limits = Limits { locks_per_session: 1_000_000, waiters_per_lock: 1_000_000, ..Limits::default() };
    let mut machine = Machine::new(limits);
    for i in 0..held {
        let mut client = Client::open(&mut machine);
        client.acquire(&mut machine, &name(format!("accounts/{i:08}/card")));
    }
    machine
}

fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}

/// Nanoseconds for one of `count` steps, median of `samples`.
fn measure(samples: usize, count: u32, mut steps: impl FnMut(u32)) -> f64 {
    let sample = |_| {
        let start = Instant::now();
        steps(count);
        start.elapsed().as_nanos() as f64 / f64::from(count)
    };
    median((0..samples).map(sample).collect())
}

/// Acquire and release on names that nobody else uses, from the name's text to the answer, by 64 clients in turn.
fn pairs(machine: &mut Machine, numbered: bool) -> f64 {
    let mut clients: Vec<_> = (0..64).map(|_| Client::open(machine)).collect();
    let (mut at, mut text) = (0, String::new());
    measure(9, 200_000, |count| {
        for _ in 0..count {
            at += 1;
            text.clear();
            write!(text, "orders/{:08}", at * 7919 % 99_999_989).unwrap();
            let lock = LockName::new(&text).unwrap();
            let client = &mut clients[at % 64];
            client.numbered = numbered;
            let token = client.acquire(machine, &lock);
            client.release(machine, &lock, token);
        }
    })
}

/// A lock with a queue: regulars who wait, hold, and wait again, and visitors who give up.
struct Hot {
    lock: LockName,
    regulars: Vec<Client>,
    visitors: Vec<Client>,
    token: Token,
    step: usize,
}

impl Hot {
    fn open(machine: &mut Machine, number: usize, length: usize) -> Hot {
        let lock = name(format!("hot/{number}"));
        let mut regulars: Vec<_> = (0..=length).map(|_| Client::open(machine)).collect();
        let mut visitors: Vec<_> = (0..length / 4).map(|_| Client::open(machine)).collect();
        let token = regulars[0].acquire(machine, &lock);
        regulars[1..].iter_mut().for_each(|client| client.wait(machine, &lock));
        visitors.iter_mut().for_each(|client| client.wait(machine, &lock));
        Hot { lock, regulars, visitors, token, step: 0 }
    }

    /// The holder releases (the first in the queue is granted) and joins again at the end; one who came a quarter of
    /// the queue ago gives up, and joins again: four operations.
    fn turn(&mut self, machine: &mut Machine) {
        let holder = self.step % self.regulars.len();
        self.regulars[holder].release(machine, &self.lock, self.token);
        self.token = machine.last_token().unwrap();
        self.regulars[holder].wait(machine, &self.lock);
        let oldest = self.step % self.visitors.len();
        self.visitors[oldest].cancel(machine);
        self.visitors[oldest].wait(machine, &self.lock);
        self.step += 1;
    }
}

/// Nanoseconds for one operation on queues of this length. There are always 100,000 regulars in all, so that only the
/// length of the queues differs and not how much memory is used.
fn queue(length: usize) -> f64 {
    let mut machine = machine_with(1000);
    let mut locks: Vec<_> = (0..100_000 / length).map(|number| Hot::open(&mut machine, number, length)).collect();
    let mut at = 0;
    measure(9, 40_000, |count| {
        for _ in 0..count / 4 {
            at = (at + 1) % locks.len();
            locks[at].turn(&mut machine);
        }
    })
}

/// Microseconds to expire one session that holds so many locks.
fn expiry(machine: &mut Machine, locks: u32) -> f64 {
    let names: Vec<_> = (0..locks).map(|i| name(format!("batch/{i:08}"))).collect();
    let mut samples = Vec::new();
    for _ in 0..9 {
        let mut client = Client::open(machine);
        for lock in &names {
            client.acquire(machine, lock);
        }
        let start = Instant::now();
        let applied = machine.apply(Command::ExpireSession { session: client.session });
        samples.push(start.elapsed().as_nanos() as f64 / 1000.0);
        assert_eq!(applied.events.len(), locks as usize + 1);
    }
    median(samples)
}

fn memory(count: u32) -> f64 {
    let before = IN_USE.load(Ordering::Relaxed);
    let machine = machine_with(count);
    let bytes = IN_USE.load(Ordering::Relaxed) - before;
    drop(machine);
    bytes as f64 / f64::from(count)
}

fn main() {
    println!("acquire + release, while others hold locks (target: 1,000,000 pairs/s at 1,000,000)");
    let mut million = None;
    for held in [1_000, 10_000, 100_000, 1_000_000] {
        let mut machine = machine_with(held);
        for (numbered, what) in [(false, "plain"), (true, "with request numbers")] {
            let pair = pairs(&mut machine, numbered);
            println!("  {held:>9} held  {pair:>7.0} ns/pair  {:>10.0} pairs/s  {what}", 1e9 / pair);
        }
        million = Some(machine);
    }
    println!("expiring one session (target: linear in its locks, nothing else)");
    for (others, machine) in [("1,000", &mut machine_with(1000)), ("1,000,000", &mut million.unwrap())] {
        for locks in [1_000, 10_000, 100_000] {
            let us = expiry(machine, locks);
            let each = us * 1000.0 / f64::from(locks);
            println!("  {locks:>9} locks beside {others:>9} others  {us:>9.0} us  {each:>5.0} ns/lock");
        }
    }
    println!("queues with 100,000 waiters in all: join, leave the middle, release and grant the next (target: flat)");
    for length in [10, 1_000, 100_000] {
        println!("  {length:>9} in a queue  {:>7.0} ns/operation", queue(length));
    }
    println!("memory of a held lock with its own session, label and request (target: at most 300 bytes)");
    for count in [100_000, 900_000, 1_000_000] {
        println!("  {count:>9} locks  {:>7.1} bytes each", memory(count));
    }
}
