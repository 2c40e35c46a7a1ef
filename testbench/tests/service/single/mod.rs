//! The service as a real process that is killed and stopped, and connections to it that are cut and delayed.

mod barred;
mod clocks;
mod cuts;
mod drops;
mod durable;
mod fixture;
mod guarded;
mod late;
mod protocol;
mod redis_commands;
mod restarts;
mod signed;
mod stops;
