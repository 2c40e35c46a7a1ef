//! The service over HTTP and RESP, in this process.

mod http;
mod untrusted_resp;
