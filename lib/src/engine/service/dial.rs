//! The one place where a stream to the service is made.

use std::io;

use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

use super::Config;

pub(super) type Reader = OwnedReadHalf;
pub(super) type Writer = OwnedWriteHalf;

pub(super) async fn dial(config: &Config) -> io::Result<(Reader, Writer)> {
    let stream = TcpStream::connect((config.host.as_str(), config.port)).await?;
    stream.set_nodelay(true)?;
    Ok(stream.into_split())
}
