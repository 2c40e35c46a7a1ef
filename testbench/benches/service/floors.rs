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
}

impl Floors {
    pub(crate) fn measure(folder: &Path) -> Floors {
        Floors { fdatasync_us: fdatasync_us(folder), round_trip_us: round_trip_us() }
    }

    /// The best that one client can have who acquires and releases, both durable.
    pub(crate) fn cycle_ms(&self) -> f64 {
        2.0 * (self.fdatasync_us + self.round_trip_us) / 1e3
    }
}

/// 512 bytes into a file that is already filled with zeros.
fn fdatasync_us(folder: &Path) -> f64 {
    let path = folder.join("floor");
    let file = File::create(&path).unwrap();
    file.write_all_at(&vec![0; BYTES * TIMES as usize], 0).unwrap();
    file.sync_all().unwrap();
    let median = median_us(|at| {
        file.write_all_at(&[7; BYTES], at * BYTES as u64).unwrap();
        file.sync_data().unwrap();
    });
    std::fs::remove_file(path).unwrap();
    median
}

/// As many bytes as a command has, to another thread and back.
fn round_trip_us() -> f64 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (mut far, _) = listener.accept().unwrap();
    near.set_nodelay(true).unwrap();
    far.set_nodelay(true).unwrap();
    let echo = thread::spawn(move || {
        let mut bytes = [0; 64];
        while far.read_exact(&mut bytes).is_ok() {
            far.write_all(&bytes).unwrap();
        }
    });
    let mut bytes = [7; 64];
    let median = median_us(|_| {
        near.write_all(&bytes).unwrap();
        near.read_exact(&mut bytes).unwrap();
    });
    drop(near);
    echo.join().unwrap();
    median
}

fn median_us(mut once: impl FnMut(u64)) -> f64 {
    let times = (0..TIMES).map(|at| {
        let began_at = Instant::now();
        once(at);
        began_at.elapsed().as_secs_f64() * 1e6
    });
    crate::median(times)
}
