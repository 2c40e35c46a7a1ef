//! The fence of PostgreSQL in plain SQL: its refusals at every isolation level, for every role, and over a crash.

mod concurrency;
mod crash;
mod fixture;
mod library;
mod rights;
mod rows;
mod sql;
mod tables;
