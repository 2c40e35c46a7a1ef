//! Writer processes are killed -9 and overtaken repeatedly: no acknowledged write is lost, none is applied twice,
//! and the mark and the data agree.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::Receiver;
use std::time::Duration;

use ::object_store::ObjectStoreExt;
use palisade_fence::file::{FencedFile, FencedFolder};
use palisade_fence::sqlite::Sqlite;
use palisade_fence::{Error, Mark, object_store};
use palisade_testbench::bounded::{self, block_until, bound_for};
use palisade_testbench::servers::S3;
use palisade_testbench::worker_process::{lines, next_line};

/// The number of kills, unless `PALISADE_KILLS` sets another.
const KILLS: u32 = 24;

/// Checks a promise over all kills.
fn check(promise: impl Future<Output = ()>) {
    bounded::check(bound_for(super::kills(KILLS), Duration::from_secs(10)), promise);
}

struct Writer {
    process: Child,
    reports: Receiver<String>,
    /// The last acknowledged number, and the count of them.
    last: u64,
    count: u64,
}

impl Writer {
    fn start(kind: &str, path: &Path, token: u64) -> Writer {
        let mut writer = Command::new(env!("CARGO_BIN_EXE_fenced"));
        writer.arg(kind).arg(path).arg(token.to_string()).stdout(Stdio::piped());
        let mut process = writer.spawn().expect("it can be started");
        let reports = lines(process.stdout.take().expect("it is piped"));
        Writer { process, reports, last: 0, count: 0 }
    }

    /// Reads one report; `false` when the writer was overtaken or has ended.
    fn wrote(&mut self) -> bool {
        let line = next_line(&self.reports, "the writer reports a write").unwrap_or_default();
        match line.trim().parse() {
            Ok(number) => {
                assert!(number > self.last, "it was told {number} after {}", self.last);
                (self.last, self.count) = (number, self.count + 1);
                true
            }
            Err(_) => {
                assert!(line.is_empty() || line.trim() == "overtaken", "it said {line:?}");
                false
            }
        }
    }

    /// Reads the rest of its reports.
    fn end(mut self) -> Writer {
        while self.wrote() {}
        block_until("the writer has ended", || self.process.try_wait().expect("it is our child").is_some());
        self
    }

    fn kill(mut self) -> Writer {
        self.process.kill().expect("it runs, or has just ended");
        self.end()
    }
}

/// The stored mark, and the token, the write and the number in the data.
type Found = (Option<Mark>, (u64, u64, u64));

async fn rounds(kind: &str, path: &Path, look: impl AsyncFn() -> Result<Found, Error>) {
    let kills = u64::from(super::kills(KILLS));
    let (mut counted, mut killed) = (0, 0);
    for round in 1..=kills {
        let mut writer = Writer::start(kind, path, round * 2);
        for _ in 0..round % 5 {
            assert!(writer.wrote(), "it was not overtaken");
        }
        if round % 3 == 0 {
            // Another writer takes over while the first one still writes.
            let mut newer = Writer::start(kind, path, round * 2 + 1);
            assert!(newer.wrote(), "it was not overtaken");
            counted += writer.end().count;
            writer = newer;
        }
        counted += writer.kill().count;
        killed += 1;
        let (mark, (token, seq, number)) = look().await.expect("it can be read");
        if let Some(mark) = mark.filter(|mark| mark.seq.get() > 0) {
            assert_eq!((mark.token.get(), mark.seq.get()), (token, seq), "round {round}: mark and data agree");
        }
        // A write may have been applied before its writer was killed.
        assert!((counted..=counted + killed).contains(&number), "round {round}: {number}, acknowledged {counted}");
    }
    assert!(counted > kills, "they got something done");
}

/// The three numbers of a line.
fn numbers(line: &str) -> (u64, u64, u64) {
    let mut numbers = line.split(' ').map(|number| number.parse().unwrap_or(0));
    let mut next = || numbers.next().unwrap_or(0);
    (next(), next(), next())
}

#[test]
fn a_file_survives_kills_of_its_writers() {
    check(async {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("number");
        let look = async || {
            let mark = FencedFile::open(&path)?.mark().await?;
            Ok((mark, numbers(&std::fs::read_to_string(&path).unwrap_or_default())))
        };
        rounds("file", &path, look).await;
    });
}

#[test]
fn a_folder_survives_kills_of_its_writers() {
    check(async {
        let folder = tempfile::tempdir().expect("a folder");
        let look = async || {
            let mark = FencedFolder::open(folder.path())?.mark().await?;
            Ok((mark, numbers(&std::fs::read_to_string(folder.path().join("number")).unwrap_or_default())))
        };
        rounds("folder", folder.path(), look).await;
    });
}

#[test]
fn a_table_survives_kills_of_its_writers() {
    check(async {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("numbers.db");
        let plain = rusqlite::Connection::open(&path).expect("it can be made");
        let table =
            "CREATE TABLE numbers (token INTEGER, seq INTEGER, number INTEGER); INSERT INTO numbers VALUES (0, 0, 0)";
        plain.execute_batch(table).expect("it can be written");
        let resource = Sqlite::open(&path, "numbers").await.expect("it is there");
        resource.protect("numbers").await.expect("the table is there");
        let look = async || {
            let row =
                plain.query_row("SELECT token || ' ' || seq || ' ' || number FROM numbers", [], |row| row.get(0));
            let line: String = row.expect("it can be read");
            Ok((resource.mark().await?, numbers(&line)))
        };
        rounds("sqlite", &path, look).await;
    });
}

#[test]
fn an_object_survives_kills_of_its_writers() {
    check(async {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
        let server = S3::start(folder.path()).unwrap_or_else(|absent| panic!("{absent}"));
        let store = S3::client(&server.address.to_string()).expect("a store");
        let look = async || {
            let mark = object_store::mark(store.clone(), "number").await?;
            let object =
                store.get(&"number".into()).await.expect("it is there").bytes().await.expect("it can be read");
            let text = String::from_utf8(object.to_vec()).expect("text");
            Ok((mark, numbers(text.split_once('\n').expect("the mark is a line").1)))
        };
        rounds("s3", Path::new(&server.address.to_string()), look).await;
    });
}
