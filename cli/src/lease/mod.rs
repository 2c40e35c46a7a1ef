//! Locks that scripts hold across steps: `acquire`, `renew`, `release`. No process keeps their session alive: it ends when
//! its TTL passes without a renewal.

mod acquire;
mod find;
mod release;
mod renew;

pub(crate) use acquire::{Acquire, EXAMPLES as ACQUIRE_EXAMPLES, acquire};
pub(crate) use find::RUN_SESSION;
pub(crate) use release::{EXAMPLES as RELEASE_EXAMPLES, Release, release};
pub(crate) use renew::{EXAMPLES as RENEW_EXAMPLES, Renew, renew};
