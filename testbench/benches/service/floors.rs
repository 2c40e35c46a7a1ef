//! What nobody can do faster: a round trip on loopback, and making a few bytes durable.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::thread;
use std::time::Instant;

const BYTES: usize = 512;
const TIMES: u64 = 1000;

/// Medians, in microseconds.
#[derive(Clone, Copy)]
pub(crate) struct Floors {
    pub(crate) fdatasync_us: f64,
    pub(crate) round_trip_us: f64,
    /// A round trip to somebody who does nothing but make a few bytes durable before it answers. Not the sum of the
    /// two: those who wait for a disk in between are asleep when they are wanted, and have to be woken.
    pub(crate) durable_round_trip_us: f64,
}

impl Floors {
    pub(crate) fn measure(folder: &Path) -> Floors {
        let path = folder.join("floor");
        let file = File::create(&path).unwrap();
        file.write_all_at(&vec![0; BYTES * TIMES as usize], 0).unwrap();
        file.sync_all().unwrap();
        let durable = |at| {
            file.write_all_at(&[7; BYTES], at % TIMES * BYTES as u64).unwrap();
            file.sync_data().unwrap();
        };
        let floors = Floors {
            fdatasync_us: median_us(durable),
            round_trip_us: round_trip_us(|_| ()),
            durable_round_trip_us: round_trip_us(durable),
        };
        std::fs::remove_file(path).unwrap();
        floors
    }

    /// What one client who acquires and releases, both durable, cannot do without; each part measured alone.
    pub(crate) fn parts_ms(&self) -> f64 {
        2.0 * (self.fdatasync_us + self.round_trip_us) / 1e3
    }

    /// The same, one after the other.
    pub(crate) fn echo_ms(&self) -> f64 {
        2.0 * self.durable_round_trip_us / 1e3
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
