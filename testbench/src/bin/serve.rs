//! The service as a process: `serve DIRECTORY ADDRESS`. Prints the address it listens on, then serves until it is killed.
//! Port 0 is any free one. With `SERVE_TLS=FOLDER` connections are encrypted with `server.pem` and `server.key` of that
//! folder; if it has `clients.pem` too, clients must have certificates of that authority. With
//! `SERVE_USERS="NAME HASH VERB PREFIX;…"` there are users, each with one right; a prefix may be empty. With `SERVE_SIGN`
//! tokens are signed.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout)]

use std::env;
use std::error::Error;
use std::io::Write;
use std::path::Path;

use palisade_server::access::{Rule, User, Users};
use palisade_server::sign::Signer;
use palisade_server::tls::{Tls, TlsFiles};
use palisade_server::{Config, serve};
use tokio::net::TcpListener;
use tokio::runtime::Builder;
use tokio::task::LocalSet;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = env::args().skip(1);
    let (Some(directory), Some(address)) = (arguments.next(), arguments.next()) else {
        return Err("usage: serve DIRECTORY ADDRESS".into());
    };
    let tls = env::var("SERVE_TLS").ok().map(|folder| tls(Path::new(&folder))).transpose()?;
    let users = env::var("SERVE_USERS").ok().map(|users| read_users(&users)).transpose()?;
    let signer = env::var_os("SERVE_SIGN").map(|_| Signer::new(Path::new(&directory)));
    let config = Config { tls, users, signer, ..Config::new(directory) };
    let runtime = Builder::new_current_thread().enable_all().build()?;
    LocalSet::new().block_on(&runtime, async {
        let listener = TcpListener::bind(address).await?;
        println!("{}", listener.local_addr()?);
        std::io::stdout().flush()?;
        Ok(serve(config, listener).await?)
    })
}

fn tls(folder: &Path) -> Result<Tls, Box<dyn Error>> {
    let client_ca = Some(folder.join("clients.pem")).filter(|file| file.exists());
    Ok(Tls::load(&TlsFiles {
        certificate: folder.join("server.pem"),
        key: folder.join("server.key"),
        client_ca,
        client_optional: false,
        user_from: None,
    })?)
}

fn read_users(users: &str) -> Result<Users, Box<dyn Error>> {
    let read = |user: &str| -> Result<User, Box<dyn Error>> {
        let [name, hash, verb, prefix] = user.split(' ').collect::<Vec<_>>()[..] else {
            return Err(format!("'{user}' is not NAME HASH VERB PREFIX").into());
        };
        let rule = Rule { verbs: vec![verb.parse()?], prefix: prefix.to_owned() };
        Ok(User::new(name, Some(hash.parse()?), vec![rule])?)
    };
    let users: Result<Vec<_>, _> = users.split(';').map(read).collect();
    Ok(Users::new(users?)?)
}
