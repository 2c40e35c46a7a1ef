//! Mistakes of operators with the file of `embedded:`: other names, links, mounts, containers, users, umasks,
//! removed files, old copies put back, full disks.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod containers;
mod disks;
mod fixture;
mod names;
mod removed;
mod restored;
mod users;
