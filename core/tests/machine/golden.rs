//! The rules of locks as golden scripts: each file in `scripts` is a list of commands, with the machine's answer and events
//! below each. A reviewer can read one as a proof.
//!
//! Each script is a test with the script's name. After every command the runner checks more than it prints; see
//! [`runner`]. To write a new script, write its commands, each block ended by `---`, add its name to the list
//! below, run `UPDATE_GOLDENFILES=1 cargo test -p palisade-core --test machine golden`, and then read what was generated.
//!
//! [`parse`] explains the syntax.

mod bindings;
mod parse;
mod render;
mod replay;
mod runner;

macro_rules! scripts {
    ($($name:ident)*) => {
        $(
            #[test]
            fn $name() -> std::io::Result<()> {
                goldenscript::run(&mut runner::Runner::new(), concat!("tests/scripts/", stringify!($name)))
            }
        )*

        const SCRIPTS: &[&str] = &[$(stringify!($name)),*];
    };
}

scripts! {
    grant
    queue
    secret
    shared
    permits
    multi
    expiry
    dedup
    force
    delay
    election
    limits
    snapshot
    bad_input

    anomaly_counter_restarts_when_lock_is_deleted
    anomaly_delay_skipped_on_release
    anomaly_duplicate_request_granted_twice
    anomaly_expiry_herd
    anomaly_grant_reply_later_than_ttl
    anomaly_lock_order_deadlock
    anomaly_multi_starved_by_singles
    anomaly_old_token_reused_after_force
    anomaly_paused_holder_release_frees_successor
    anomaly_readers_starve_writer
    anomaly_restart_takes_tokens_back
    anomaly_retried_release_after_own_reacquire
    anomaly_self_deadlock
    anomaly_semaphore_limits_differ
    anomaly_small_permits_starve_large
    anomaly_stale_ticket_cancels_successor
    anomaly_timed_out_acquire_commits
    anomaly_token_query_returns_successors
    anomaly_waiter_granted_after_its_session_died
}

#[test]
fn every_script_is_run() -> std::io::Result<()> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("tests/scripts")? {
        found.push(entry?.file_name().to_string_lossy().into_owned());
    }
    found.sort();
    let mut listed = SCRIPTS.to_vec();
    listed.sort_unstable();
    assert_eq!(found, listed, "the files in tests/scripts, and the scripts listed in tests/machine/golden.rs");
    Ok(())
}
