//! The engine on MySQL and MariaDB: the conformance suite, and what only this engine has to be asked.

mod model;
mod scene;
mod suite;
