//! Many processes increment one number; some of them are killed and stopped on the way.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use palisade_testbench::fenced_file::FencedFile;

use super::actors::{TempStore, Worker};

const PROCESSES: usize = 50;
const TIMES: usize = 200;
const TTL_MS: u64 = 6_000;

/// The fault of a worker, and the count at which it happens.
#[derive(Clone, Copy, PartialEq)]
enum Fate {
    Spared,
    Killed(usize),
    Stopped(usize),
}

fn fate(worker: usize) -> Fate {
    match worker % 10 {
        3 => Fate::Killed(20 + worker),
        7 => Fate::Stopped(10 + worker),
        _ => Fate::Spared,
    }
}

#[test]
#[ignore = "long: killed and stopped processes"]
fn fifty_processes_that_are_killed_and_stopped_lose_nothing() {
    let place = TempStore::new();
    let file = place.file("number");
    let told = format!("count {} counter {TIMES}", file.display());
    let (acks, acknowledged) = mpsc::channel();
    let workers: Vec<_> = (0..PROCESSES)
        .map(|number| {
            let mut worker = Worker::start(&place, TTL_MS);
            worker.send(&told);
            let acks = acks.clone();
            thread::spawn(move || follow(worker, fate(number), &acks))
        })
        .collect();
    drop(acks);
    let acknowledged: Vec<u64> = acknowledged.iter().collect();
    workers.into_iter().for_each(|worker| worker.join().expect("its worker does as it is told"));

    let contents = FencedFile::open(&file).and_then(|mut file| file.contents()).expect("the file can be read");
    let rising = contents.writes.windows(2).all(|pair| pair[0] < pair[1]);
    assert!(rising, "tokens do not rise: {:?}", contents.writes);
    let lost: Vec<_> = acknowledged.iter().filter(|token| contents.writes.binary_search(token).is_err()).collect();
    assert!(lost.is_empty(), "acknowledged, but not in the file: {lost:?}");
    // A killed worker may have written once without reporting it.
    let killed = (0..PROCESSES).filter(|worker| matches!(fate(*worker), Fate::Killed(_))).count();
    let unsaid = contents.writes.len() - acknowledged.len();
    assert!(unsaid <= killed, "{unsaid} writes were never acknowledged, but only {killed} workers were killed");
    let whole = (0..PROCESSES).filter(|worker| !matches!(fate(*worker), Fate::Killed(_))).count();
    assert!(acknowledged.len() >= whole * TIMES, "a worker did not finish");
}

/// Forwards the acknowledgements of a worker, and causes its fault.
fn follow(mut worker: Worker, fate: Fate, acks: &mpsc::Sender<u64>) {
    let mut counted = 0;
    while let Some(reply) = worker.next_reply() {
        if reply == "counted" {
            return;
        }
        let token = reply.strip_prefix("ack ").unwrap_or_else(|| panic!("{reply}"));
        acks.send(token.parse().expect("a token is a number")).expect("the test listens");
        counted += 1;
        match fate {
            Fate::Killed(at) if at == counted => worker.kill(),
            Fate::Stopped(at) if at == counted => {
                worker.stop();
                // The pause is the fault: longer than the session lives.
                thread::sleep(Duration::from_millis(TTL_MS * 3 / 2));
                worker.go_on();
            }
            _ => {}
        }
    }
    assert!(matches!(fate, Fate::Killed(_)), "a worker ended without a kill");
}
