//! The proof: conformance suite, fault injection, simulation, history checker, benchmarks. Imports every other
//! crate; no crate imports it.
#![forbid(unsafe_code)]

#[cfg(feature = "suites")]
pub mod bounded;
#[cfg(feature = "suites")]
pub mod chart;
#[cfg(feature = "suites")]
pub mod conformance;
#[cfg(feature = "suites")]
pub mod coordination;
#[cfg(feature = "suites")]
pub mod credentials;
pub mod faulty_disk;
#[cfg(feature = "suites")]
pub mod faulty_engine;
#[cfg(feature = "suites")]
pub mod fenced_file;
#[cfg(feature = "suites")]
pub mod fencing;
#[cfg(feature = "suites")]
pub mod fixture;
#[cfg(feature = "suites")]
pub mod history;
#[cfg(feature = "suites")]
pub mod order;
#[cfg(feature = "suites")]
pub mod proxy;
#[cfg(feature = "suites")]
pub mod servers;
pub mod simulation;
#[cfg(feature = "suites")]
pub mod soak;
#[cfg(feature = "suites")]
pub mod switched_disk;
#[cfg(feature = "suites")]
pub mod tidy;
#[cfg(feature = "suites")]
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
