//! Signed tokens, for a resource that does not trust its clients.
//!
//! A fence trusts the token of a request. If clients cannot be trusted, let the service sign its tokens (`palisade
//! serve --sign`), and verify them here, offline: this cluster granted the token, for this lock, to this user. Whether
//! it was overtaken is still for the fence to decide. A signed token does not expire.
//!
//! ```
//! # use palisade_fence::signed::{BadKeys, Verifier};
//! # fn example(shown: &str) -> Result<(), Box<dyn std::error::Error>> {
//! // As `curl http://…/v1/keys` says, once, over a line that you trust.
//! let keys = r#"{"issuer":"9b1deb4d3b7d4bad9bdd2b0d7b3dcb6d","keys":[{"kty":"OKP","crv":"Ed25519","kid":"k1",
//!               "x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}"#;
//! let verifier = Verifier::new("9b1deb4d3b7d4bad9bdd2b0d7b3dcb6d", keys)?;
//! let genuine = verifier.verify(shown, "orders/42")?;                    // or: verify_from(shown, "orders/42", "ci")
//! println!("token {} of {:?}", genuine.token, genuine.principal);
//! # Ok(()) }
//! # assert!(example("forged").is_err());
//! ```

mod refused;
mod verifier;

pub use palisade_core::{Claims, Scope};
pub use refused::{BadKeys, NotGenuine};
pub use verifier::Verifier;
