//! What a resource's owner adds: gates and seals that refuse a token which has been overtaken, and the adapters
//! for databases, files, object stores and HTTP. Imports `core` alone.
#![forbid(unsafe_code)]
