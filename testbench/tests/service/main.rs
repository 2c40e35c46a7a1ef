//! The service as a real process, and the way to it: killed, stopped, cut off, delayed.

mod barred;
mod clocks;
mod cuts;
mod drops;
mod durable;
mod fixture;
mod guarded;
mod late;
mod protocol;
mod restarts;
mod signed;
mod stops;
