//! The promises of every fenced resource, as one suite of functions: each is one promise, checked on any [`Subject`]
//! through [`Sealed`](palisade_fence::Sealed) handles, some of them over a [`Wire`] that loses, delays and repeats.
//!
//! A test file calls [`fencing!`](macro@crate::fencing) once per adapter, and gets one test per promise.

mod bench;
mod handles;
mod numbers;
mod outages;
mod seals;
mod wire;

pub use bench::{Bench, Subject, run};
pub use handles::*;
pub use numbers::*;
pub use outages::survive;
pub use seals::*;
pub use wire::{Act, Wire};

/// A module of tests, one per promise, for one adapter. Each test creates the subject again.
#[macro_export]
macro_rules! fencing {
    ($adapter:ident, $subject:expr) => {
        mod $adapter {
            #[allow(unused_imports)]
            use super::*;
            $crate::__fencing_tests! { ($subject)
                // seals
                what_is_sealed_can_be_read_and_written
                an_older_seal_is_refused
                an_older_seal_is_refused_though_the_newer_one_wrote_nothing
                a_stale_write_is_refused_after_a_seal
                a_stale_read_is_refused_after_a_seal
                what_was_never_sealed_is_neither_read_nor_written
                a_token_that_has_not_sealed_is_refused
                marks_and_data_survive_a_reopening
                resources_have_marks_of_their_own
                names_that_are_alike_have_marks_of_their_own
                an_impossible_change_changes_nothing
                the_last_token_is_a_token
                a_bad_name_is_refused
                // numbers
                a_repeated_write_is_applied_once_and_has_the_same_outcome
                a_write_that_comes_again_later_is_not_applied
                a_gap_is_refused
                a_write_whose_answer_was_lost_is_settled_as_applied
                a_write_that_was_lost_is_settled_as_never_applied_and_stays_so
                settling_can_be_repeated
                what_is_not_settled_is_neither_read_nor_written
                a_write_that_was_dropped_midway_is_settled
                a_late_write_of_an_overtaken_holder_changes_nothing
                settling_after_a_takeover_is_refused
                // handles
                sealing_again_goes_on_with_the_numbers
                two_handles_under_one_token_never_take_each_others_writes
                increments_under_rising_tokens_are_never_lost
            }
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __fencing_tests {
    (($subject:expr) $($name:ident)*) => {
        $(
            #[test]
            fn $name() {
                $crate::fencing::run($subject, $crate::fencing::$name);
            }
        )*
    };
}
