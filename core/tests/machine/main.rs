//! The rules, by golden scripts, in every small state, and with random commands.

mod common;
mod every_state;
mod golden;
mod rules;
mod seal;
mod snapshots;
