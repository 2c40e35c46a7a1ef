//! The library in applications: its client, its recipes, real processes, careless operators.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod library;
mod operators;
mod processes;
mod recipes;
