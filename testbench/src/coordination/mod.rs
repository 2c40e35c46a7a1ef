//! The promises of engines on coordination stores (etcd, ZooKeeper, Consul), on real servers and real processes: faults, members that
//! fail, requests, and random histories compared with `core`. The faults have the numbers of the table that the tests name.
//!
//! A test file implements nothing: [`Store`] is implemented here for each store, and
//! [`coordination!`](macro@crate::coordination) expands to one test per promise. Tests of one store's own traps stay with its
//! engine.

mod bench;
mod clocks;
mod conformance;
mod consul;
mod counting;
mod ensemble;
#[cfg(feature = "etcd")]
mod etcd;
mod faults;
mod model;
mod offset;
mod repeating;
mod zookeeper;

pub use bench::{Fixture, Stores, run};
pub use clocks::*;
pub use conformance::{OnOne, OnThree};
pub use counting::*;
pub use ensemble::*;
pub use faults::*;
pub use model::random_histories_agree_with_the_model;
pub use offset::*;
pub use repeating::Repeating;

use std::future::Future;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use palisade::engine::{Engine, Failure};

use crate::servers::Absent;
use palisade_cli::harness::wall_clock::WallClock;

/// A store of one or three members, and the engine that keeps locks in it. Its processes end when it is dropped.
pub trait Store: Sized + Send + Sync + 'static {
    /// The engine.
    type Engine: Engine;

    /// The shortest TTL that the store keeps.
    const SHORT_TTL: Duration;
    /// Whether the engine leaves a note in the store about an acquire that may arrive late. A store that refuses a request of
    /// an older connection needs none.
    const REMEMBERS_REQUESTS: bool = true;

    /// Starts one member whose files are in this folder.
    ///
    /// # Errors
    ///
    /// It is not installed, or does not begin to answer.
    fn start(folder: &Path) -> Result<Self, Absent>;

    /// Starts three members whose files are in this folder, and waits until they have a leader.
    ///
    /// # Errors
    ///
    /// As [`Store::start`].
    fn start_three(folder: &Path) -> Result<Self, Absent>;

    /// Starts one member with this wall clock. `None` if the clock of the program cannot be set.
    fn start_with_clock(folder: &Path, clock: &WallClock) -> Option<Result<Self, Absent>>;

    /// Returns the addresses of the members.
    fn addresses(&self) -> Vec<SocketAddr>;

    /// Returns the URL of members at these addresses, for locks below this prefix.
    fn url(addresses: &[SocketAddr], prefix: &str) -> String;

    /// Connects the engine to a URL.
    fn connect(url: &str) -> impl Future<Output = Result<Self::Engine, Failure>>;

    /// Returns the index of the member that leads. `None` during an election.
    fn leader(&self) -> Option<usize>;

    /// Kills a member with `SIGKILL`.
    fn kill(&mut self, member: usize);

    /// Starts a killed member again, on the same files and at the same address, and waits until it answers.
    ///
    /// # Errors
    ///
    /// It does not begin to answer.
    fn restart(&mut self, member: usize) -> Result<(), Absent>;

    /// Stops a member, until [`Store::go_on`].
    fn stop(&self, member: usize);

    /// Lets a member continue.
    fn go_on(&self, member: usize);

    /// Returns the keys or nodes of sessions and locks below a prefix.
    fn keys(&self, prefix: &str) -> impl Future<Output = Vec<String>>;
}

#[doc(hidden)]
#[macro_export]
macro_rules! __coordination_tests {
    ($(#[$attribute:meta])* ($stores:expr) $($name:ident)*) => {
        $crate::__coordination_tests! { @each [$(#[$attribute])*] ($stores) $($name)* }
    };
    (@each $attributes:tt ($stores:expr) $($name:ident)*) => {
        $( $crate::__coordination_tests! { @one $attributes ($stores) $name } )*
    };
    (@one [$(#[$attribute:meta])*] ($stores:expr) $name:ident) => {
        #[test]
        $(#[$attribute])*
        fn $name() {
            $crate::coordination::run($stores, $crate::coordination::$name);
        }
    };
}

/// A module of tests for one [`Store`](crate::coordination::Store): the promises of coordination stores, the conformance suite
/// on one member, and, ignored unless they are asked for, the conformance suite on three members and on three members that fail.
#[macro_export]
macro_rules! coordination {
    ($module:ident, $store:ty) => {
        mod $module {
            use $crate::coordination::{OnOne, OnThree, Stores};

            pub(crate) static STORES: Stores<$store> = Stores::new(env!("CARGO_BIN_EXE_worker"));

            $crate::__coordination_tests! { (&STORES)
                a_claim_whose_answer_is_lost_is_found_again
                an_acquire_that_is_given_up_while_its_answer_is_lost_is_undone
                a_repeated_release_frees_no_newer_grant_of_another_client
                a_repeated_release_frees_no_newer_grant_of_the_same_session
                a_release_that_races_a_keep_alive_frees_the_lock
                a_close_that_races_a_keep_alive_ends_the_session
                a_close_that_races_an_acquire_ends_the_session
                a_client_whose_wall_clock_jumps_keeps_its_lock
            }
            $crate::__coordination_tests! { #[ignore = "long: faults that take their time on a real server"] (&STORES)
                // faults
                a_stopped_holder_is_overtaken_and_its_write_is_refused
                a_grant_whose_answer_comes_after_the_ttl_is_not_handed_out
                a_waiter_whose_session_dies_in_the_queue_is_told_and_never_granted
                an_acquire_that_arrives_late_leaves_no_claim
                a_release_that_arrives_late_frees_no_newer_grant
                a_link_that_heals_in_time_loses_nothing
                a_holder_that_is_cut_off_is_told_before_another_has_its_lock
                locks_and_queues_survive_a_killed_and_a_stopped_server
                // clocks
                a_server_whose_wall_clock_jumps_ends_no_session
                // counting
                ten_thousand_locks_cost_no_more_to_keep_and_go_at_once
                nothing_is_left_behind
                a_set_is_granted_or_refused_however_long_its_names_are
                // ensemble
                a_leader_that_is_killed_stopped_or_cut_off_stops_no_work
                a_deposed_leader_does_not_name_the_old_holder
                // model
                random_histories_agree_with_the_model
            }
            $crate::conformance!(on_one_member, OnOne::new(&STORES));
            $crate::conformance!(on_three_members, OnThree::new(&STORES), ignore = "long: three members");
            $crate::conformance!(on_failing_members, OnThree::failing(&STORES), ignore = "long: members that fail");
        }
    };
}
