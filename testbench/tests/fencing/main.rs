//! Every adapter keeps every promise of `testbench/src/fencing`.

mod http;
mod in_memory;
mod objects;
