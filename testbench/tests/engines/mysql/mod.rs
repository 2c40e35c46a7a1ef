//! The engine on MySQL and MariaDB: the conformance suite, its own promises, and real faults.

#[allow(dead_code)]
#[path = "../../clients/processes/actors.rs"]
mod actors;
// What may happen to a store is the same for both databases.
#[path = "../postgres/crash.rs"]
mod crash;
// These faults of connections are the same for every engine with a connection.
#[path = "../../service/single/cuts.rs"]
mod cuts;
#[path = "../../service/single/drops.rs"]
mod drops;
mod fixture;
mod functions;
#[path = "../postgres/guarded.rs"]
mod guarded;
#[path = "../../service/single/late.rs"]
mod late;
#[path = "../postgres/model.rs"]
mod model;
mod queues;
mod quick;
mod rare;
#[path = "../postgres/round_trips.rs"]
mod round_trips;
mod sessions;
mod settings;
#[path = "../postgres/steps.rs"]
mod steps;
#[path = "../postgres/stops.rs"]
mod stops;
mod suite;
mod tables;
