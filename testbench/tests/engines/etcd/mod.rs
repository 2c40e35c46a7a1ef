//! The engine in etcd, on real servers.

mod counting;
mod fixture;
mod lost_data;
mod rights;
mod traps;

palisade_testbench::coordination!(suite, palisade_testbench::servers::EtcdCluster);
