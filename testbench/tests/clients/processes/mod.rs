//! Real processes on one file: stopped, killed, with clocks that jump.

mod actors;
mod clocks;
mod counting;
mod pauses;
