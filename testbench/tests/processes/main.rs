//! Real processes on one file: stopped, killed, with clocks that jump.

mod cast;
mod clocks;
mod counting;
mod pauses;
