//! The engine on PostgreSQL: the conformance suite, its own promises, and real faults.

#[allow(dead_code)]
#[path = "../processes/actors.rs"]
mod actors;
mod advisory;
mod cleaning;
mod crash;
// These faults of connections are the same for every engine with a connection.
#[path = "../service/cuts.rs"]
mod cuts;
#[path = "../service/drops.rs"]
mod drops;
mod fixture;
mod functions;
mod guarded;
#[path = "../service/late.rs"]
mod late;
mod model;
mod people;
mod queues;
mod quick;
mod rare;
mod round_trips;
mod sessions;
mod steps;
mod stops;
mod suite;
mod tables;
