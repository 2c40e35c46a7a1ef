//! Commands for recipes.

pub(crate) mod once;
pub(crate) mod queue;
pub(crate) mod store;
