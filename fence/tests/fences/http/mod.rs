//! The layer between a client and a service, with single and concurrent requests.

mod answers;
mod concurrency;
mod fixture;
mod paths;
mod signatures;
mod unknown_outcomes;
