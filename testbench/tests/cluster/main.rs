//! A cluster of real processes: killed, stopped, cut off and restarted while clients work.
#![allow(clippy::unwrap_used)]

mod clocks;
mod conformance;
mod disks;
mod failures;
mod fixture;
mod http;
mod http_client;
mod partitions;
mod redis_clients;
mod replays;
mod silent;
mod stopped;
mod strangers;
mod upgrades;
