//! The engine in Consul, on real servers.

mod attacks;
mod cluster;
mod counting;
mod delays;
mod fixture;
mod guarded;
mod lost_data;
mod refusals;
mod traps;

palisade_testbench::coordination!(suite, palisade_testbench::servers::ConsulCluster);
