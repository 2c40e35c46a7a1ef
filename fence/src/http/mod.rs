//! HTTP services.
