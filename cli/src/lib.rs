//! The part of `palisade prove` that the testbench uses too.
#![forbid(unsafe_code)]

pub mod harness;
