//! Shared by the random and the exhaustive tests.
#![allow(dead_code, reason = "each test file uses its own part of this folder")]

pub(crate) mod event_checker;
pub(crate) mod model;
pub(crate) mod observed;
pub(crate) mod steps;
