//! A long run on each named store: see `scripts/soak --help`, and `palisade_testbench::soak` for how it is judged.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::error::Error;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use palisade::blocking::{Palisade, connect_with};
use palisade::{BootInstant, Options};
use palisade_testbench::faulty_disk::Rng;
use palisade_testbench::soak::judge::Judge;
use palisade_testbench::soak::store::{Kind, Store};
use palisade_testbench::soak::{HOT, OTHERS, PERMITS, hot, now};
use palisade_testbench::worker_process::WorkerProcess;

const WORKERS: usize = 20;
/// The number of workers that are stopped now and then, but never killed: they notice long waits.
const SPARED: usize = 4;
/// The longest time that a hot lock may go without a grant to a living worker. Four dead sessions of 30 s in a row fit in.
const STALL: Duration = Duration::from_secs(180);
/// Within this time all locks are free after the end of all workers: more than the longest TTL.
const REGAINED: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    match run() {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("scripts/soak: {error}");
            ExitCode::from(2)
        }
    }
}

fn run() -> Result<usize, Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (mut minutes, mut kinds) = (60.0, Vec::new());
    let mut pause_ms = 30;
    let mut seed = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--minutes" => minutes = arguments.next().ok_or("--minutes needs a number")?.parse()?,
            "--seed" => seed = arguments.next().ok_or("--seed needs a number")?.parse()?,
            "--pause" => pause_ms = arguments.next().ok_or("--pause needs a number")?.parse()?,
            "all" => kinds.extend(Kind::ALL),
            store => kinds.push(store.parse()?),
        }
    }
    if kinds.is_empty() {
        return Err("name a store: embedded, service, postgres, mysql, redis, or all".into());
    }
    let length = Duration::try_from_secs_f64(60.0 * minutes)?;
    let mut violations = 0;
    for kind in kinds {
        violations += soak(kind, length, seed, pause_ms)?;
    }
    Ok(violations)
}

/// Runs one store. Returns the number of violations.
fn soak(kind: Kind, length: Duration, seed: u64, pause_ms: u64) -> Result<usize, Box<dyn Error>> {
    let folder = tempfile::Builder::new().prefix(&format!("palisade-soak-{kind}-")).tempdir()?;
    println!("{kind}: {} min, seed {seed}, files in {}", length.as_secs() / 60, folder.path().display());
    let mut run = Run::start(kind, folder.path(), seed, pause_ms)?;
    run.go_on(length)?;
    let violations = run.end()?;
    for violation in violations.iter().take(20) {
        println!("{kind}: VIOLATED: {violation}");
    }
    run.summary();
    drop(run);
    if violations.is_empty() {
        println!("{kind}: clean after {} min", length.as_secs() / 60);
    } else {
        println!("{kind}: {} violations, seed {seed}; look at {}", violations.len(), folder.keep().display());
    }
    Ok(violations.len())
}

#[derive(Debug, Default)]
struct Counts {
    killed: usize,
    terminated: usize,
    left: usize,
    stopped: usize,
    server_killed: usize,
    checked: usize,
}

struct Slot {
    process: WorkerProcess,
    record: PathBuf,
    /// When a stopped worker continues.
    goes_on: Option<Instant>,
}

struct Run {
    kind: Kind,
    folder: PathBuf,
    store: Store,
    rng: Rng,
    pause_ms: u64,
    slots: Vec<Slot>,
    judge: Judge,
    counts: Counts,
    events: File,
    started: usize,
    violations: Vec<String>,
}

impl Run {
    fn start(kind: Kind, folder: &Path, seed: u64, pause_ms: u64) -> Result<Run, Box<dyn Error>> {
        let store = Store::start(kind, folder, &program("serve")?)?;
        let events = OpenOptions::new().create(true).append(true).open(folder.join("events"))?;
        let mut run = Run {
            kind,
            folder: folder.to_owned(),
            store,
            rng: Rng::new(seed),
            pause_ms,
            slots: Vec::new(),
            judge: Judge::default(),
            counts: Counts::default(),
            events,
            started: 0,
            violations: Vec::new(),
        };
        for _ in 0..WORKERS {
            let slot = run.new_worker()?;
            run.slots.push(slot);
        }
        Ok(run)
    }

    fn new_worker(&mut self) -> Result<Slot, Box<dyn Error>> {
        self.started += 1;
        let record = self.folder.join(format!("worker-{}", self.started));
        let reply = File::create(self.folder.join(format!("worker-{}.log", self.started)))?;
        let mut process = WorkerProcess::spawn(Command::new(program("worker")?).stderr(reply))?;
        self.judge.expect(record.clone());
        let (url, folder, seed) = (self.store.url(), self.folder.display(), self.rng.below(1 << 30));
        process.send(&format!("soak {url} {folder} {} {seed} {}", record.display(), self.pause_ms));
        Ok(Slot { process, record, goes_on: None })
    }

    fn note(&mut self, what: &str) -> Result<(), Box<dyn Error>> {
        Ok(writeln!(self.events, "{} {what}", now())?)
    }

    fn go_on(&mut self, length: Duration) -> Result<(), Box<dyn Error>> {
        let began = Instant::now();
        let (mut minutes, mut next_read) = (0, began);
        let mut next_fault = began;
        let mut next_outage = began + Duration::from_secs(10);
        while began.elapsed() < length && self.violations.is_empty() {
            let at = Instant::now();
            self.look_after_workers(at)?;
            if at >= next_fault {
                self.fault(at)?;
                next_fault = at + Duration::from_millis(self.rng.below(1_000) as u64);
            }
            if at >= next_outage {
                self.outage()?;
                next_outage =
                    Instant::now() + self.kind.shortest_uptime() + Duration::from_secs(self.rng.below(30) as u64);
            }
            if at >= next_read {
                self.judge.read(self.kind.ends_dead_sessions())?;
                self.violations.extend(self.judge.stalls(now(), STALL));
                self.check()?;
                next_read = at + Duration::from_secs(5);
            }
            if began.elapsed().as_secs() / 60 > minutes {
                minutes += 1;
                self.progress(&format!("{minutes} min"));
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Continues workers that were stopped for long enough. A worker that has ended without a signal is a violation.
    fn look_after_workers(&mut self, at: Instant) -> Result<(), Box<dyn Error>> {
        for number in 0..self.slots.len() {
            let slot = &mut self.slots[number];
            if slot.process.has_ended()? {
                let record = slot.record.clone();
                self.violations.push(format!("a worker has ended without a signal: see {}.log", record.display()));
                self.replace(number)?;
            } else if slot.goes_on.is_some_and(|moment| moment <= at) {
                slot.process.go_on();
                slot.goes_on = None;
            }
        }
        Ok(())
    }

    fn fault(&mut self, at: Instant) -> Result<(), Box<dyn Error>> {
        let number = self.rng.below(WORKERS);
        let (action, stop_ms) = (self.rng.below(10), 100 + self.rng.below(4_000) as u64);
        let slot = &mut self.slots[number];
        let name = slot.record.display().to_string();
        if slot.goes_on.is_some() {
            return Ok(());
        }
        match action {
            _ if number < SPARED && action >= 2 => {}
            0..3 => {
                slot.process.stop();
                slot.goes_on = Some(at + Duration::from_millis(stop_ms));
                self.counts.stopped += 1;
                self.note(&format!("stop {stop_ms} {name}"))?;
            }
            3..7 => {
                self.counts.killed += 1;
                self.note(&format!("kill {name}"))?;
                self.remove(number, WorkerProcess::kill)?;
            }
            7..9 => {
                self.counts.terminated += 1;
                self.note(&format!("terminate {name}"))?;
                self.remove(number, WorkerProcess::terminate)?;
            }
            _ => {
                self.counts.left += 1;
                self.note(&format!("leave {name}"))?;
                self.slots[number].process.send("leave");
                // If the store is down, the worker does not end, and is killed.
                let began = Instant::now();
                while began.elapsed() < Duration::from_secs(5) && !self.slots[number].process.has_ended()? {
                    thread::sleep(Duration::from_millis(5));
                }
                self.remove(number, WorkerProcess::kill)?;
            }
        }
        Ok(())
    }

    /// Ends a worker, and starts another one in its place.
    fn remove(&mut self, number: usize, end: impl Fn(&WorkerProcess)) -> Result<(), Box<dyn Error>> {
        let at = now();
        let slot = &mut self.slots[number];
        if !slot.process.has_ended()? {
            end(&slot.process);
        }
        slot.process.until_ended();
        let record = slot.record.clone();
        self.judge.ends(&record, at);
        self.replace(number)
    }

    fn replace(&mut self, number: usize) -> Result<(), Box<dyn Error>> {
        self.slots[number] = self.new_worker()?;
        Ok(())
    }

    /// The server is killed and started again.
    fn outage(&mut self) -> Result<(), Box<dyn Error>> {
        self.note("kill the server")?;
        if self.store.kill() {
            self.counts.server_killed += 1;
            thread::sleep(Duration::from_millis(self.rng.below(2_500) as u64));
            self.store.restart()?;
            self.note("the server is there again")?;
        }
        Ok(())
    }

    /// Runs the store's own check of its data.
    fn check(&mut self) -> Result<(), Box<dyn Error>> {
        if let Some(found) = self.store.check()? {
            self.counts.checked += 1;
            self.violations.extend(found.into_iter().map(|wrong| format!("the store's own check: {wrong}")));
        }
        Ok(())
    }

    /// Ends all workers and judges. Returns the violations.
    fn end(&mut self) -> Result<Vec<String>, Box<dyn Error>> {
        let at = now();
        for slot in std::mem::take(&mut self.slots) {
            slot.process.kill();
            drop(slot.process);
            self.judge.ends(&slot.record, at);
        }
        self.judge.read(self.kind.ends_dead_sessions())?;
        self.regain()?;
        self.check()?;
        self.violations.extend(self.judge.verdict(&self.folder)?);
        Ok(std::mem::take(&mut self.violations))
    }

    /// Checks that every lock is granted again with a higher token, and that no lock is in use afterwards.
    fn regain(&mut self) -> Result<(), Box<dyn Error>> {
        let palisade = connect_with(Options::new().label("soak"), &self.store.url())?;
        let until = BootInstant::now() + REGAINED;
        let highest = self.judge.highest_tokens();
        let mut names: Vec<String> = (0..HOT).map(hot).collect();
        names.extend((0..OTHERS).map(|number| format!("rw/{number}")));
        let used_once: Vec<_> = highest.keys().filter(|name| name.starts_with("new/")).collect();
        let step = used_once.len() / 1_000 + 1;
        names.extend(used_once.into_iter().step_by(step).map(ToString::to_string));
        for name in names {
            let wrong = regain(&palisade, &name, highest.get(name.as_str()).copied(), until)?;
            self.violations.extend(wrong);
        }
        for name in (0..OTHERS).map(|number| format!("permits/{number}")) {
            let request = palisade.permits(&name, PERMITS, PERMITS).dangerous_accept_failover();
            if request.acquire_within(until.left())?.is_none() {
                self.violations.push(format!("{name} cannot be had although all workers are gone"));
            }
        }
        while !palisade.list("")?.is_empty() {
            if until.has_passed() {
                let left: Vec<_> = palisade.list("")?.into_iter().take(5).collect();
                self.violations.push(format!("locks are still in use although all workers are gone: {left:?}"));
                break;
            }
            thread::sleep(Duration::from_millis(100));
        }
        Ok(palisade.close()?)
    }

    fn progress(&self, when: &str) {
        let Counts { killed, terminated, left, stopped, server_killed, checked } = &self.counts;
        println!(
            "{}: {when}: {} grants, {} fenced updates; workers: {killed} killed, {terminated} terminated, {left} \
             left, {stopped} stopped; server killed {server_killed} times, its data checked {checked} times",
            self.kind,
            self.judge.grants(),
            self.judge.updates(),
        );
    }

    fn summary(&self) {
        self.progress("in all");
        println!("{}: the longest wait took {:?}; what failed and passes:", self.kind, self.judge.longest_wait());
        for (what, times) in self.judge.failures() {
            println!("{}: {times:>8} times {what}", self.kind);
        }
    }
}

fn regain(
    palisade: &Palisade,
    name: &str,
    highest: Option<u64>,
    until: BootInstant,
) -> Result<Option<String>, Box<dyn Error>> {
    let request = palisade.lock(name).dangerous_accept_failover();
    let Some(guard) = request.acquire_within(until.left())? else {
        return Ok(Some(format!("{name} cannot be had although all workers are gone")));
    };
    let token = guard.token()?.get();
    guard.release()?;
    let fell = highest.is_some_and(|highest| token <= highest);
    Ok(fell.then(|| format!("{name} was granted in the end with {token}, after {highest:?}")))
}

/// Another program of the test bench, which is built next to this one.
fn program(name: &str) -> Result<PathBuf, Box<dyn Error>> {
    let program = std::env::current_exe()?.with_file_name(name);
    if program.exists() { Ok(program) } else { Err(format!("{} is not built", program.display()).into()) }
}
