//! A file that refuses an old token: `cargo run -p palisade-fence --example fenced_file`.
//!
//! Two holders share a lock and a file. The first one is overtaken while it thinks, as a process that is stopped would be,
//! and its write is refused.
#![allow(clippy::print_stdout)]

use std::error::Error;

use palisade_fence::file::FencedFile;
use palisade_fence::{Seal, Token};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let directory = tempfile::tempdir()?;
    let orders = FencedFile::open(directory.path().join("orders.txt"))?;
    // The tokens of two grants: `guard.token()?`, or PALISADE_TOKEN under `palisade run`.
    let (older, newer) = (Token::new(33)?, Token::new(34)?);

    let mut paused = orders.seal(older).await?;
    paused.write(Some(b"rope".to_vec())).await?;
    let mut orders = orders.seal(newer).await?;
    orders.write(Some(b"rope, iron".to_vec())).await?;

    let refused = paused.write(Some(b"rope, wood".to_vec())).await.expect_err("it was overtaken");
    println!("{refused}");
    println!("the file has: {}", String::from_utf8_lossy(&orders.read(()).await?.unwrap_or_default()));
    Ok(())
}
