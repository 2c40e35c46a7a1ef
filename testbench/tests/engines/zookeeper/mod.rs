//! The engine in ZooKeeper, on real servers.

mod counting;
mod fixture;
mod lost_data;
mod nodes;
mod rights;
mod unreachable;

palisade_testbench::coordination!(suite, palisade_testbench::servers::ZooKeeperEnsemble);
