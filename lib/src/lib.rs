//! What an application adds: `connect(url)`, locks, guards that know when they are lost, the keeper of the
//! session, and one folder per engine. Imports `core` alone; engines never see each other.
#![forbid(unsafe_code)]
