//! HTTP as clients meet it: a real service on real sockets.

mod attacks;
mod bad_input;
mod bounds;
mod client;
mod dashboards;
mod description;
mod numbers;
mod operations;
mod page;
mod requests;
mod signing;
mod test_server;
mod untrusted_input;
mod waiting;
mod watching;
