//! Every adapter keeps every promise of `testbench/src/fencing`.

mod acquiring;
mod files;
mod in_memory;
mod kills;
mod sqlite;
