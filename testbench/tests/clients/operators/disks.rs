//! Disks that are full.

use super::fixture::{Fixture, LONG_MS, is_privileged};

#[test]
fn the_error_of_a_full_disk_says_so() {
    if !is_privileged("a_full_disk_is_called_a_full_disk") {
        return;
    }
    let fixture = Fixture::new();
    // Full before the files exist; full with existing, closed files; and almost full, so that a later write fails.
    for left_kb in [0, 4, 8, 12, 20, 28, 36, 44] {
        for is_used_before in [false, true] {
            let script = format!(
                "mount -t tmpfs -o size=512k none locks\n{}\nhead -c 1m /dev/zero > locks/filler 2>/dev/null || :\n\
                 truncate -s -{left_kb}K locks/filler",
                if is_used_before {
                    "{ echo connect embedded://$PWD/locks/locks.db 60000; echo acquire a; } | \"$WORKER\" >&2"
                } else {
                    ""
                }
            );
            let mut worker = fixture.worker_by(&["unshare", "--mount"], &script);
            let mut reply = worker.connect(&fixture.file(), LONG_MS);
            let mut number = 0;
            while !reply.starts_with("error ") {
                number += 1;
                assert!(number < 20_000, "the disk is never full");
                reply = worker.ask(&format!("try {number}/{}", "x".repeat(400)));
            }
            assert!(reply.contains("no space is left"), "{left_kb} kB, {is_used_before}: {reply}");
        }
    }
}
