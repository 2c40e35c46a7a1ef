//! What the layer does between a client and a service, one request at a time and several at once.

mod answers;
mod doubts;
mod paths;
mod scene;
mod signatures;
mod turns;
