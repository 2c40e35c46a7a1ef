//! One client's cycles beside what nobody can do faster: a round trip on loopback, and making a few bytes durable. Turn
//! about and many times, as a disk is now faster and now slower; all of it by clients that block on their socket.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use palisade_testbench::servers::Service;

use crate::resp::{self, Reply};

const BYTES: usize = 512;
/// How often each is done in a turn.
const TIMES: u64 = 200;

/// Medians of one turn, in microseconds.
pub(crate) struct Turn {
    pub(crate) fdatasync_us: f64,
    pub(crate) round_trip_us: f64,
    /// A round trip to somebody who does nothing but make a few bytes durable before it answers. Not the sum of the
    /// two: those who wait for a disk in between are asleep when they are wanted, and have to be woken.
    pub(crate) durable_round_trip_us: f64,
    /// The service's: acquire and release.
    pub(crate) cycle_us: f64,
}

impl Turn {
    /// What one client who acquires and releases, both durable, cannot do without; each part measured alone.
    pub(crate) fn parts_us(&self) -> f64 {
        2.0 * (self.fdatasync_us + self.round_trip_us)
    }
}

/// As many turns as there is time for.
pub(crate) fn beside(service: &Service, folder: &Path, length: Duration) -> Vec<Turn> {
    let path = folder.join("floor");
    let file = File::create(&path).unwrap();
    file.write_all_at(&vec![0; BYTES * TIMES as usize], 0).unwrap();
    file.sync_all().unwrap();
    // (Written in one small piece; in larger ones each fdatasync takes longer. The log is made likewise.)
    let durable = |at| {
        file.write_all_at(&[7; BYTES], at % TIMES * BYTES as u64).unwrap();
        file.sync_data().unwrap();
    };
    let mut client = Client::connect(service.address);
    let opened = client.ask(&["SESSION", "OPEN", "600000"]);
    let session = opened.get("session").unwrap().to_string();
    let (began_at, mut turns) = (Instant::now(), Vec::new());
    while turns.is_empty() || began_at.elapsed() < length {
        turns.push(Turn {
            fdatasync_us: median_us(durable),
            round_trip_us: round_trip_us(|_| ()),
            durable_round_trip_us: round_trip_us(durable),
            cycle_us: median_us(|_| client.cycle(&session)),
        });
    }
    client.ask(&["SESSION", "CLOSE", &session]);
    std::fs::remove_file(path).unwrap();
    turns
}

/// A client that does nothing else while it waits.
struct Client {
    stream: TcpStream,
}

impl Client {
    fn connect(address: SocketAddr) -> Client {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        Client { stream }
    }

    fn ask(&mut self, words: &[&str]) -> Reply {
        let (mut outbox, mut inbox, mut length) = (Vec::new(), [0; 1024], 0);
        resp::put(&mut outbox, words);
        self.stream.write_all(&outbox).unwrap();
        loop {
            let more = self.stream.read(&mut inbox[length..]).unwrap();
            assert!(more > 0, "the server has closed the line");
            length += more;
            if let Some((reply, _)) = resp::parse(&inbox[..length]) {
                return reply;
            }
        }
    }

    fn cycle(&mut self, session: &str) {
        let token = self.ask(&["LOCK", "ACQUIRE", "alone", "SESSION", session]).get("token").unwrap();
        self.ask(&["LOCK", "RELEASE", "alone", &token.to_string()]);
    }
}

/// As many bytes as a command has, to another thread, which does something, and back.
fn round_trip_us(before_answering: impl Fn(u64) + Sync) -> f64 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (mut far, _) = listener.accept().unwrap();
    near.set_nodelay(true).unwrap();
    far.set_nodelay(true).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut bytes = [0; 64];
            for at in 0.. {
                if far.read_exact(&mut bytes).is_err() {
                    break;
                }
                before_answering(at);
                far.write_all(&bytes).unwrap();
            }
        });
        let mut bytes = [7; 64];
        let median = median_us(|_| {
            near.write_all(&bytes).unwrap();
            near.read_exact(&mut bytes).unwrap();
        });
        drop(near);
        median
    })
}

fn median_us(mut once: impl FnMut(u64)) -> f64 {
    let times = (0..TIMES).map(|at| {
        let began_at = Instant::now();
        once(at);
        began_at.elapsed().as_secs_f64() * 1e6
    });
    crate::median(times)
}
