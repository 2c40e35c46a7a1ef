//! The promises of the library above any engine: cancelling, keeping, losing, releasing, replying.
//!
//! A faulty engine causes each fault at a chosen moment. Comments name the numbers of the faults that Palisade must survive.

mod blocking;
mod cancelling;
mod fixture;
mod keeping;
mod local_queue;
mod messages;
mod replying;
