//! The engine on MySQL and MariaDB: the conformance suite, the rules beside it, and real faults.

#[allow(dead_code)]
#[path = "../processes/cast.rs"]
mod cast;
mod crash;
// What may happen to a line is the same for every engine that has one.
#[path = "../service/cuts.rs"]
mod cuts;
#[path = "../service/drops.rs"]
mod drops;
#[path = "../service/late.rs"]
mod late;
mod model;
mod round_trips;
mod scene;
mod stops;
mod suite;
mod tables;
