//! Fenced files and folders. The writer is this test program, started a second time under strace.

use std::io::Write;
use std::path::{Path, PathBuf};

use palisade_fence::file::{Edit, FencedFile, FencedFolder};
use palisade_fence::{Seal, Token};

use super::trace::{Flushes, Trace, Tracing};
use crate::common::process::Process;
use crate::sandbox::Sandbox;

/// The variable that names the folder to the writer.
const FOLDER: &str = "PALISADE_TEST_FLUSHES_IN";

/// Runs one of the writers below, and returns its trace.
fn traced(sandbox: &Sandbox, writer: &str) -> Option<Trace> {
    let (_, module) = module_path!().split_once("::").expect("it is not the root");
    let mut command = sandbox.program(std::env::current_exe().unwrap().to_str().expect("UTF-8"));
    command.args(["--exact", "--include-ignored", "--nocapture", &format!("{module}::{writer}")]);
    command.env(FOLDER, sandbox.path());
    let output = sandbox.path().with_extension("trace");
    let (mut command, tracing) = Tracing::of(&command, output.clone(), 1024, Flushes::Quick)?;
    // It writes its few lines into a pipe.
    let (mut process, _stdout) = Process::start_reading(&mut command);
    assert!(process.wait().success());
    let trace = tracing.end(process.pid());
    std::fs::remove_file(output).unwrap();
    Some(trace)
}

/// Returns the folder that the writer writes to; `None` if this process is not the writer.
fn folder() -> Option<PathBuf> {
    std::env::var_os(FOLDER).map(PathBuf::from)
}

fn report(text: &str) {
    let mut out = std::io::stdout().lock();
    out.write_all(format!("{text}\n").as_bytes()).and_then(|()| out.flush()).unwrap();
}

#[tokio::test]
#[ignore = "started by the test of its trace"]
async fn write_a_file() {
    let Some(folder) = folder() else { return };
    let file = FencedFile::open(folder.join("orders")).unwrap();
    let mut sealed = file.seal(Token::new(34).unwrap()).await.unwrap();
    report("says: sealed");
    for contents in ["contents-1", "contents-2"] {
        sealed.replace(contents).await.unwrap();
        report(&format!("says: written {contents}"));
    }
    sealed.remove().await.unwrap();
    report("says: removed");
}

#[tokio::test]
#[ignore = "started by the test of its trace"]
async fn write_a_folder() {
    let Some(folder) = folder() else { return };
    let mut sealed = FencedFolder::open(folder).unwrap().seal(Token::new(34).unwrap()).await.unwrap();
    report("says: sealed");
    for contents in ["contents-1", "contents-2"] {
        let put = |name: &str| Edit::Put { name: name.to_owned(), contents: contents.as_bytes().to_vec() };
        sealed.change(vec![put("orders"), put("bills")]).await.unwrap();
        report(&format!("says: written {contents}"));
    }
}

/// Checks that every write was durable when the writer reported it. Lock files and temporary files do not count.
fn check(trace: &Trace, folder: &Path, mark: &str) {
    let must_survive = |path: &Path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let is_temporary =
            [".palisade-lock", ".palisade-put", ".palisade-new"].iter().any(|own| name.starts_with(own));
        path.parent() == Some(folder) && !is_temporary
    };
    let reported = |what: &str| trace.first(what, |call| call.is_write() && call.has(&format!("says: {what}")));
    trace.assert_durable_at(reported("sealed"), "34", |path| path.file_name().is_some_and(|name| *name == *mark));
    for contents in ["contents-1", "contents-2"] {
        trace.assert_durable_at(reported(&format!("written {contents}")), contents, must_survive);
    }
    trace.assert_flushed_before_renamed(must_survive);
    // The contents are durable under their first names before the mark refers to them.
    for rename in
        trace.calls.iter().filter(|call| call.is_rename() && call.path(1).is_some_and(|to| to.ends_with(mark)))
    {
        let is_new = |path: &Path| path.to_string_lossy().contains("/.palisade-put-34");
        let at_risk = trace.at_risk(rename, is_new);
        let at_risk: Vec<_> = at_risk.into_iter().filter(|what| what.starts_with("data")).collect();
        assert!(at_risk.is_empty(), "{at_risk:#?}");
    }
}

#[test]
fn a_fenced_file_is_durable_before_it_is_acknowledged() {
    let sandbox = Sandbox::new();
    let Some(trace) = traced(&sandbox, "write_a_file") else { return };
    check(&trace, sandbox.path(), ".palisade-mark-orders");
    let removed = trace.first("it is removed", |call| call.is_write() && call.has("says: removed"));
    let removal = trace.calls.iter().rfind(|call| {
        call.is_removal() && call.path(0).is_some_and(|path| path.ends_with("/orders")) && call.result == Some(0)
    });
    let removal = removal.expect("it is removed");
    let is_flushed = trace.calls.iter().any(|call| {
        let is_after = removal.exit.is_some_and(|exit| exit < call.entry);
        let is_folder = call.target.as_ref().is_some_and(|target| Path::new(target) == sandbox.path());
        call.is_flush() && is_folder && is_after && call.exit.is_some_and(|exit| exit < removed.entry)
    });
    assert!(is_flushed, "a power cut brings the file back that was removed");
}

#[test]
fn a_fenced_folder_is_durable_before_it_is_acknowledged() {
    let sandbox = Sandbox::new();
    let Some(trace) = traced(&sandbox, "write_a_folder") else { return };
    check(&trace, sandbox.path(), ".palisade-mark");
}
