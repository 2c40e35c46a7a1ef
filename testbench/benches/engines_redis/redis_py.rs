//! redis-py's `Lock` in threads of one process, as its users have it.

use std::path::{Path, PathBuf};
use std::process::Command;

/// How many cycles each thread did; their times, in milliseconds; and those of waits for a hot lock that were no hand-overs.
pub(crate) type Cycles = (Vec<usize>, Vec<f64>, Vec<f64>);

/// Runs it on the server at this port, unless it is not installed. Each thread has a lock of its own, or all want a hot one.
pub(crate) fn measure(port: u16, threads: usize, is_hot: bool, seconds: u64) -> Option<Cycles> {
    let mut command = Command::new(python()?);
    command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/engines_redis/redis_py_lock.py"));
    command.arg(port.to_string()).arg(threads.to_string());
    command.arg(if is_hot { "hot" } else { "own" }).arg(seconds.to_string());
    let said = command.output().unwrap();
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    let text = String::from_utf8(said.stdout).unwrap();
    let mut lines = text.lines().map(|line| line.split_whitespace().map(|word| word.parse::<f64>().unwrap()));
    let counts = lines.next().unwrap().map(|count| count as usize).collect();
    Some((counts, lines.next().unwrap().collect(), lines.next().unwrap().collect()))
}

fn python() -> Option<PathBuf> {
    let python = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/tools/redis-py/bin/python3");
    python.exists().then_some(python)
}
