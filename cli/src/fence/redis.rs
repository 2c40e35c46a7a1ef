//! `palisade fence redis`.

use palisade_fence::redis::{LIBRARY, Redis};

use super::{failed, print};
use crate::outcome::Failure;
use crate::stores::with_secret;

/// For `--help`.
pub(crate) const EXAMPLES: &str = "\
Examples:
  palisade fence redis                                         Print it
  palisade fence redis | redis-cli -x FUNCTION LOAD REPLACE    Install it
  palisade fence redis --install redis://127.0.0.1:6379

--install also checks that the server evicts no marks. In a cluster install it on every primary. Redis 7 or newer is \
needed.";

/// The options of `palisade fence redis`.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Install it in this server, instead of printing it: redis://[user@]host[:port],
    /// with the password in PALISADE_SECRET
    #[arg(long, value_name = "URL")]
    install: Option<String>,
}

/// Prints the functions, or installs them.
pub(crate) async fn run(options: &Options) -> Result<(), Failure> {
    match &options.install {
        None => print(LIBRARY),
        Some(url) => {
            Redis::install(&with_secret(url)).await.map_err(failed)?;
            print("the functions are installed\n")
        }
    }
}
