//! The engine on MySQL and MariaDB: the conformance suite, its own promises, and real faults.

#[allow(dead_code)]
#[path = "../processes/actors.rs"]
mod actors;
// What may happen to a store is the same for both databases.
#[path = "../engine_postgres/crash.rs"]
mod crash;
// These faults of connections are the same for every engine with a connection.
#[path = "../service/cuts.rs"]
mod cuts;
#[path = "../service/drops.rs"]
mod drops;
mod fixture;
mod functions;
#[path = "../engine_postgres/guarded.rs"]
mod guarded;
#[path = "../service/late.rs"]
mod late;
#[path = "../engine_postgres/model.rs"]
mod model;
mod queues;
mod quick;
mod rare;
#[path = "../engine_postgres/round_trips.rs"]
mod round_trips;
mod sessions;
mod settings;
#[path = "../engine_postgres/steps.rs"]
mod steps;
#[path = "../engine_postgres/stops.rs"]
mod stops;
mod suite;
mod tables;
