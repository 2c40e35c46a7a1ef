//! The fast protocol: that of Redis, so that any of its clients can talk to the service.

pub mod frame;
mod reply;
mod request;

pub use reply::{Reply, Version};
pub(crate) use request::USAGES;
pub use request::{BadRequest, Holding, Request};
