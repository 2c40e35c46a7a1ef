//! The promises of every engine, as one suite of functions: each is one promise, checked through the public API of
//! `palisade` alone, on any [`Subject`]. An operation that an engine's
//! [`Guarantees`](palisade::engine::Guarantees) do not declare is checked to be refused.
//!
//! A test file calls [`conformance!`](macro@crate::conformance) once per engine, and gets one test per promise.

mod bench;
mod exclusion;
mod expiry;
mod holding;
mod input;
mod kinds;
mod leaving;
mod order;
pub mod seed;
mod sight;
mod signing;
pub mod stalls;
mod tokens;

pub use bench::{Bench, Held, Subject, run};
pub use exclusion::*;
pub use expiry::*;
pub use holding::*;
pub use input::*;
pub use kinds::*;
pub use leaving::*;
pub use order::*;
pub use sight::*;
pub use signing::*;
pub use tokens::*;

/// Calls a macro with the given tokens, followed by the names of all promises.
#[macro_export]
macro_rules! for_each_promise {
    ($then:ident! { $($given:tt)* }) => {
        $crate::$then! { $($given)*
            // exclusion
            an_exclusive_lock_has_one_holder_at_a_time
            contention_is_a_value_and_not_an_error
            tasks_of_one_client_exclude_each_other
            many_tasks_of_many_clients_never_overlap
            a_wait_that_times_out_is_none_and_leaves_nothing_queued
            a_wait_that_ends_in_time_is_granted
            // order
            waiters_of_several_clients_are_granted_in_order
            waiters_of_one_client_are_granted_in_order
            // tokens
            a_correctness_lock_needs_a_fenced_engine
            an_efficiency_lock_is_granted_on_every_engine
            tokens_rise_over_a_release
            tokens_rise_over_a_drop
            tokens_rise_over_the_end_of_a_session
            tokens_rise_over_a_forced_release
            tokens_rise_over_an_expiry
            tokens_rise_when_the_last_client_has_gone_and_another_comes
            raised_tokens_begin_above_the_number_and_are_never_lowered
            a_raise_that_would_use_up_the_tokens_is_refused
            // kinds
            readers_share_and_a_writer_is_alone
            a_writer_is_not_starved_by_readers
            permits_are_taken_up_to_the_limit
            a_request_for_many_permits_is_not_starved_by_small_ones
            a_semaphore_with_another_limit_is_refused
            a_semaphore_can_be_resized
            a_lock_is_no_semaphore
            several_locks_are_had_all_or_nothing
            sets_in_opposite_orders_do_not_deadlock
            a_leader_is_seen_with_what_it_publishes
            an_observer_follows_from_leader_to_leader
            a_candidacy_that_times_out_is_none
            a_candidate_takes_over_from_a_leader_that_is_cut_off
            // holding
            a_release_can_be_repeated
            dropping_a_guard_releases_it
            dropping_a_released_guard_frees_nobody_else
            a_release_that_comes_late_frees_nobody_else
            closing_loses_every_guard_and_frees_every_lock
            closing_ends_what_still_waits
            a_closed_client_does_nothing_more
            dropping_the_last_handle_closes_the_session
            a_guard_keeps_its_client_alive
            a_forced_release_tells_the_holder_who_and_why
            a_forced_release_of_one_grant_spares_a_newer_one
            a_forced_release_of_what_nobody_holds_is_refused
            a_lost_guard_stays_lost_for_its_first_reason
            work_is_dropped_when_its_lock_is_lost
            work_is_done_and_the_lock_is_released
            // expiry
            a_client_that_is_cut_off_knows_before_another_is_granted
            a_client_that_comes_back_has_a_new_session
            a_waiter_that_is_cut_off_is_told_and_leaves_the_queue
            a_delay_withholds_the_lock_after_an_expiry
            a_delay_does_not_hold_up_a_release
            // leaving
            what_a_left_session_holds_outlives_its_client
            a_left_session_ends_at_its_ttl_and_lives_on_if_it_is_kept_alive
            whoever_knows_a_left_session_can_release_what_it_holds
            whoever_knows_a_left_session_can_close_it
            a_client_that_has_left_does_nothing_more
            an_observer_sees_and_holds_nothing
            // signing
            a_token_is_signed_where_that_is_offered
            // sight
            inspection_shows_holders_waiters_and_history
            inspection_of_an_idle_lock_shows_nothing
            a_list_shows_what_is_in_use_sorted_by_name
            a_watch_shows_what_happens_in_order
            a_watch_ends_with_its_client
            labels_come_back_as_they_were_given_and_are_escaped_in_errors
            // input
            a_bad_name_is_refused_by_every_call
            a_bad_ttl_is_refused
            a_bad_delay_is_refused
            a_bad_number_of_permits_is_refused
            a_set_without_locks_or_with_one_twice_is_refused
            what_is_too_long_is_refused
            a_url_that_leads_nowhere_is_refused
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __names {
    ($($name:ident)*) => { &[$(stringify!($name)),*] };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __tests {
    (($subject:expr) $($name:ident)*) => {
        $(
            #[test]
            fn $name() {
                $crate::conformance::run($subject, $crate::conformance::$name);
            }
        )*
    };
    (($subject:expr, $ignored:literal) $($name:ident)*) => {
        $(
            #[test]
            #[ignore = $ignored]
            fn $name() {
                $crate::conformance::run($subject, $crate::conformance::$name);
            }
        )*
    };
}

/// The names of all promises.
pub const PROMISES: &[&str] = for_each_promise!(__names! {});

/// A module of tests, one per promise, for one engine. Each test creates the subject again. With a reason after `ignore`, they
/// run only if they are asked for.
#[macro_export]
macro_rules! conformance {
    ($engine:ident, $subject:expr $(, ignore = $reason:literal)?) => {
        mod $engine {
            #[allow(unused_imports)]
            use super::*;
            $crate::for_each_promise! { __tests! { ($subject $(, $reason)?) } }
        }
    };
}
