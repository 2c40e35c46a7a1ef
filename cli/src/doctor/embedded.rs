//! Checks of the lock file of an `embedded:` engine, its directory and its companion files.
//!
//! The companion files are the files next to the database that SQLite and the engine keep: `-wal`, `-shm`, `-lock`, `-bell`
//! and the directory `-sessions`.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use palisade::engine::embedded::Config;
use rustix::process::geteuid;

use super::finding::Finding;
use crate::settings::{SHARE, is_private};

/// The least free space: every grant fails if SQLite cannot extend its log.
const SPACE_NEEDED_MB: u64 = 100;
/// The least number of free inotify instances. Each process that waits for a lock needs one.
const FREE_INOTIFY_INSTANCES: usize = 16;

/// Checks the file that an `embedded:` URL names, its directory and its companion files.
pub(super) fn findings(rest: &str) -> Vec<Finding> {
    // The attempt to connect has already reported what is wrong.
    let Ok(file) = Config::parse(rest).and_then(|config| config.path()) else { return Vec::new() };
    let mut findings = Vec::new();
    // The file may be a symbolic link: check its target.
    let real = fs::canonicalize(&file).unwrap_or_else(|_| file.clone());
    findings.extend(fs::metadata(&real).ok().map(|metadata| {
        let through = if real == file { String::new() } else { format!(", through {}", file.display()) };
        Finding::ok("file", format!("{} ({}){through}", real.display(), size(metadata.len())))
    }));
    if rest.is_empty() && is_private(&real) {
        let says = format!("other users of this host do not share {}", real.display());
        findings.push(Finding::warning("sharing", says, format!("{SHARE}; or name one file for all: --url")));
    }
    findings.extend(judge_companions(&real));
    let Some(directory) = real.parent().and_then(|directory| fs::canonicalize(directory).ok()) else {
        return findings;
    };
    findings.extend(fs::read_to_string("/proc/self/mountinfo").ok().and_then(|mounts| {
        let kind = file_system(&mounts, &directory)?;
        Some(judge_file_system(&kind))
    }));
    findings.extend(fs::metadata(&directory).ok().map(|metadata| {
        let access = Access { mode: metadata.mode() & 0o7777, owner: metadata.uid() };
        judge_directory(&directory, access, geteuid().as_raw())
    }));
    findings.extend(rustix::fs::statvfs(&directory).ok().map(|stats| {
        let free = stats.f_bavail.saturating_mul(stats.f_frsize);
        judge_space(&directory, free)
    }));
    findings.extend(inotify_instances());
    findings
}

/// Returns the type of the file system that a directory is on, from the text of `/proc/self/mountinfo`.
fn file_system(mounts: &str, directory: &Path) -> Option<String> {
    let mut best: Option<(PathBuf, &str)> = None;
    for line in mounts.lines() {
        let Some((before, after)) = line.split_once(" - ") else { continue };
        let Some(point) = before.split(' ').nth(4) else { continue };
        let unescaped = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
            .iter()
            .fold(point.to_owned(), |point, (escape, character)| point.replace(escape, character));
        let point = PathBuf::from(unescaped);
        let is_deeper = best.as_ref().is_none_or(|(best, _)| point.starts_with(best));
        if directory.starts_with(&point) && is_deeper {
            best = after.split(' ').next().map(|kind| (point, kind));
        }
    }
    best.map(|(_, kind)| kind.to_owned())
}

/// Warns about volatile file systems. The engine itself rejects network file systems.
fn judge_file_system(kind: &str) -> Finding {
    const CHECK: &str = "file-system";
    match kind {
        "tmpfs" | "ramfs" => Finding::warning(
            CHECK,
            format!("{kind} is emptied at every boot: tokens begin at 1 again, below the marks of the fences"),
            "put the file on a disk",
        ),
        "overlay" => Finding::warning(
            CHECK,
            "overlay is usually the writable layer of a container: the locks and their tokens end with the container",
            "put the file on a volume that outlives the container",
        ),
        _ => Finding::ok(CHECK, format!("{kind}, on this host")),
    }
}

/// The permissions of a directory.
#[derive(Debug, Clone, Copy)]
struct Access {
    mode: u32,
    owner: u32,
}

fn judge_directory(directory: &Path, Access { mode, owner }: Access, me: u32) -> Finding {
    const CHECK: &str = "directory";
    let directory = directory.display();
    if mode & 0o002 != 0 {
        let says = format!("every user can write {directory} (mode {mode:04o}), and so take or spoil the locks");
        return Finding::warning(CHECK, says, format!("chmod o-w {directory}, or use another directory"));
    }
    if owner != me && owner != 0 {
        let says =
            format!("{directory} belongs to user {owner}, and that user can replace the file (this is user {me})");
        return Finding::warning(CHECK, says, "use a directory of this user, of root, or run as that user");
    }
    let writers =
        if mode & 0o020 != 0 { "its owner and its group can write it" } else { "only its owner can write it" };
    Finding::ok(CHECK, format!("{directory}: {writers} (mode {mode:04o})"))
}

/// Returns the mode and the group of a file.
fn mode_and_group(path: &Path) -> Option<(u32, u32)> {
    let metadata = fs::metadata(path).ok()?;
    Some((metadata.mode() & 0o666, metadata.gid()))
}

/// Checks that every user of the database can open its companion files. A user that cannot would not notice the death of a
/// holder, and would wait forever.
fn judge_companions(database: &Path) -> Option<Finding> {
    const CHECK: &str = "companions";
    let (mode, group) = mode_and_group(database)?;
    let companion = |suffix: &str| {
        let mut path = database.as_os_str().to_owned();
        path.push(suffix);
        PathBuf::from(path)
    };
    let sessions = companion("-sessions");
    let entries = fs::read_dir(&sessions).into_iter().flatten().flatten().map(|entry| entry.path());
    let companions =
        ["-wal", "-shm", "-lock", "-bell"].map(companion).into_iter().chain([sessions.clone()]).chain(entries);
    let is_inaccessible = |path: &PathBuf| {
        mode_and_group(path).is_some_and(|(file_mode, file_group)| {
            file_mode & mode != mode || (mode & 0o060 != 0 && file_group != group)
        })
    };
    let inaccessible: Vec<_> = companions.filter(is_inaccessible).map(|path| path.display().to_string()).collect();
    let Some(first) = inaccessible.first() else {
        return Some(Finding::ok(CHECK, "every user that can write the file can use its companion files"));
    };
    let more = if inaccessible.len() > 1 { format!(" and {} more", inaccessible.len() - 1) } else { String::new() };
    let says =
        format!("{first}{more} cannot be used by every user that can write {} (mode {mode:04o})", database.display());
    let directory = sessions.display();
    let advice = format!("chgrp -R {group} FILE; chmod {mode:o} FILE (for {directory} with x), for each of them");
    Some(Finding::warning(CHECK, says, advice))
}

fn judge_space(directory: &Path, free: u64) -> Finding {
    let says = format!("{} free at {}", size(free), directory.display());
    match free / 1_000_000 < SPACE_NEEDED_MB {
        true => Finding::warning("disk-space", says, "free some: without space no lock is granted"),
        false => Finding::ok("disk-space", says),
    }
}

fn size(bytes: u64) -> String {
    match bytes {
        0..1_000_000 => format!("{} kB", bytes.div_ceil(1000)),
        1_000_000..1_000_000_000 => format!("{} MB", bytes / 1_000_000),
        _ => format!("{} GB", bytes / 1_000_000_000),
    }
}

/// Checks how many inotify instances of this user are left.
fn inotify_instances() -> Option<Finding> {
    let limit = fs::read_to_string("/proc/sys/fs/inotify/max_user_instances").ok()?;
    let me = geteuid().as_raw();
    let mine = fs::read_dir("/proc").ok()?.flatten().filter(|process| {
        let is_process = process.file_name().to_string_lossy().bytes().all(|byte| byte.is_ascii_digit());
        is_process && process.metadata().is_ok_and(|found| found.uid() == me)
    });
    let used = mine.map(|process| inotify_instances_of(&process.path())).sum();
    Some(judge_inotify_instances(used, limit.trim().parse().ok()?))
}

fn inotify_instances_of(process: &Path) -> usize {
    let Ok(open) = fs::read_dir(process.join("fd")) else { return 0 };
    let targets = open.flatten().filter_map(|file| fs::read_link(file.path()).ok());
    targets.filter(|target| target.as_os_str() == "anon_inode:inotify").count()
}

fn judge_inotify_instances(used: usize, limit: usize) -> Finding {
    let says = format!("{used} of {limit} inotify instances of this user are in use");
    match limit.saturating_sub(used) < FREE_INOTIFY_INSTANCES {
        true => Finding::warning(
            "listeners",
            format!("{says}; without a free one, a process notices its grant up to 250 ms late"),
            "sysctl fs.inotify.max_user_instances=1024",
        ),
        false => Finding::ok("listeners", says),
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::Status;
    use super::*;

    const MOUNTS: &str = "\
22 27 0:21 / /proc rw - proc proc rw
27 1 254:0 / / rw shared:1 - ext4 /dev/vda rw
31 27 0:30 / /srv rw - xfs /dev/vdb rw
32 31 0:31 / /srv/my\\040locks rw - tmpfs tmpfs rw
33 31 0:32 / /srv/a\\134b rw - btrfs /dev/vdc rw
no mount at all";

    #[test]
    fn the_deepest_mount_decides_the_file_system() {
        let kind = |path: &str| file_system(MOUNTS, Path::new(path));
        assert_eq!(kind("/var/lib").as_deref(), Some("ext4"));
        assert_eq!(kind("/srv/app").as_deref(), Some("xfs"));
        assert_eq!(kind("/srv/my locks/a").as_deref(), Some("tmpfs"));
        assert_eq!(kind("/srv/a\\b/c").as_deref(), Some("btrfs"));
        assert_eq!(kind("/srvx").as_deref(), Some("ext4"));
        assert_eq!(file_system("", Path::new("/")), None);
    }

    #[test]
    fn warns_about_volatile_file_systems() {
        for kind in ["tmpfs", "ramfs", "overlay"] {
            assert_eq!(judge_file_system(kind).status, Status::Warning, "{kind}");
        }
        assert_eq!(judge_file_system("ext4").status, Status::Ok);
    }

    #[test]
    fn warns_about_directories_writable_by_others() {
        let status = |mode, owner| judge_directory(Path::new("/d"), Access { mode, owner }, 1000).status;
        assert_eq!(status(0o700, 1000), Status::Ok);
        assert_eq!(status(0o2770, 0), Status::Ok);
        assert_eq!(status(0o777, 1000), Status::Warning);
        assert_eq!(status(0o1777, 0), Status::Warning);
        assert_eq!(status(0o755, 1001), Status::Warning);
    }

    #[test]
    fn warns_about_companion_files_that_some_users_cannot_open() {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().expect("a directory can be made");
        let database = directory.path().join("locks.db");
        let sessions = directory.path().join("locks.db-sessions");
        fs::create_dir(&sessions).expect("it can be made");
        let session = sessions.join("7");
        let set =
            |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("it is ours");
        for path in [&database, &session] {
            fs::write(path, "").expect("it can be written");
            set(path, 0o660);
        }
        set(&sessions, 0o770);
        let status = || judge_companions(&database).map(|finding| finding.status);
        assert_eq!(status(), Some(Status::Ok));
        set(&session, 0o600);
        assert_eq!(status(), Some(Status::Warning));
        set(&database, 0o600);
        assert_eq!(status(), Some(Status::Ok));
    }

    #[test]
    fn warns_about_little_disk_space_and_few_inotify_instances() {
        assert_eq!(judge_space(Path::new("/d"), 99_999_999).status, Status::Warning);
        assert_eq!(judge_space(Path::new("/d"), 100_000_000).status, Status::Ok);
        assert_eq!(judge_inotify_instances(112, 128).status, Status::Ok);
        assert_eq!(judge_inotify_instances(113, 128).status, Status::Warning);
        assert_eq!(judge_inotify_instances(500, 128).status, Status::Warning);
    }

    #[test]
    fn sizes_are_short() {
        assert_eq!(
            [0, 1, 999_999, 1_000_000, 62_123_456_789].map(size),
            ["0 kB", "1 kB", "1000 kB", "1 MB", "62 GB"]
        );
    }
}
