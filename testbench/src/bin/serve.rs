//! The service as a process of its own: `serve DIRECTORY ADDRESS`. Says the address it listens on, then serves until it
//! is killed. Port 0 is any free one.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout)]

use std::error::Error;
use std::io::Write;

use palisade_server::{Config, serve};
use tokio::net::TcpListener;
use tokio::runtime::Builder;
use tokio::task::LocalSet;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(directory), Some(address)) = (arguments.next(), arguments.next()) else {
        return Err("usage: serve DIRECTORY ADDRESS".into());
    };
    let runtime = Builder::new_current_thread().enable_all().build()?;
    LocalSet::new().block_on(&runtime, async {
        let listener = TcpListener::bind(address).await?;
        println!("{}", listener.local_addr()?);
        std::io::stdout().flush()?;
        Ok(serve(Config::new(directory), listener).await?)
    })
}
