//! The fence of PostgreSQL, as plain SQL uses it: what is refused, when, by whom, at every isolation level, over a crash.

mod concurrency;
mod crash;
mod fixture;
mod library;
mod rights;
mod rows;
mod sql;
mod tables;
