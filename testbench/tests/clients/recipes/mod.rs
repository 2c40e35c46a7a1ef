//! The recipes: each with the failure that it prevents, on real databases and engines.

mod cache;
mod idempotency;
mod once;
mod partitions;
mod queue;
mod queue_model;
mod rights;
mod versioned;
