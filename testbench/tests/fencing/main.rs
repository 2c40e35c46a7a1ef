//! Every adapter keeps every promise of `testbench/src/fencing`.

mod in_memory;
mod on_postgres;
