//! The proof: conformance suite, fault injection, simulation, history checker, benchmarks. Imports every other
//! crate; no crate imports it.
#![forbid(unsafe_code)]

pub mod bounded;
pub mod chart;
pub mod conformance;
pub mod coordination;
pub mod credentials;
pub mod faulty_disk;
pub mod faulty_engine;
pub mod fenced_file;
pub mod fencing;
pub mod fixture;
pub mod history;
pub mod network;
pub mod order;
pub mod proxy;
pub mod servers;
pub mod soak;
pub mod switched_disk;
pub mod tidy;
pub mod wall_clock;
pub mod worker_process;

/// The examples of the guide are doc tests: they need both the library and the fences.
#[cfg(doctest)]
#[doc = include_str!("../../docs/fencing.md")]
struct Fencing;

/// As above.
#[cfg(doctest)]
#[doc = include_str!("../../docs/fencing/postgres.md")]
struct FencingPostgres;
/// The same for the engines.
#[cfg(doctest)]
#[doc = include_str!("../../docs/engines/consul.md")]
struct EngineConsul;
/// As above.
#[cfg(doctest)]
#[doc = include_str!("../../docs/engines/mysql.md")]
struct EngineMysql;
/// As above.
#[cfg(doctest)]
#[doc = include_str!("../../docs/engines/postgres.md")]
struct EnginePostgres;
/// As above.
#[cfg(doctest)]
#[doc = include_str!("../../docs/engines/redis.md")]
struct EngineRedis;
/// The same for signed tokens.
#[cfg(doctest)]
#[doc = include_str!("../../docs/signed-tokens.md")]
struct SignedTokens;
/// And for Redlock.
#[cfg(doctest)]
#[doc = include_str!("../../docs/engines/redlock.md")]
struct EngineRedlock;
/// And for ZooKeeper.
#[cfg(doctest)]
#[doc = include_str!("../../docs/engines/zookeeper.md")]
struct EngineZookeeper;
