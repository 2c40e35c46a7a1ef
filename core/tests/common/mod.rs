//! What the random and the exhaustive tests share.
#![allow(dead_code, reason = "each test file uses its own part of this folder")]

pub(crate) mod asks;
pub(crate) mod model;
pub(crate) mod picture;
pub(crate) mod story;
