//! What the library promises above any engine: cancelling, keeping, losing, releasing, telling.
//!
//! An engine on a stage makes each fault happen at a chosen moment. The numbers in the names of the sections are those
//! of the faults that Palisade must survive.

mod blocking;
mod cancelling;
mod fixture;
mod keeping;
mod local_queue;
mod messages;
mod replying;
