//! The engine on PostgreSQL: the conformance suite, its own promises, and real faults.

#[allow(dead_code)]
#[path = "../../clients/processes/actors.rs"]
mod actors;
mod advisory;
mod cleaning;
mod crash;
// These faults of connections are the same for every engine with a connection.
#[path = "../../service/single/cuts.rs"]
mod cuts;
#[path = "../../service/single/drops.rs"]
mod drops;
mod fixture;
mod functions;
mod guarded;
#[path = "../../service/single/late.rs"]
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
