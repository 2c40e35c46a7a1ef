//! A process that adds one to a fenced number until it is overtaken or killed: `fenced file|folder|sqlite|s3 PATH TOKEN`.
//!
//! It prints each number that was acknowledged, one per line, and `overtaken` in the end. With each number it writes the
//! token and the number of the write, so that it can be seen whether the data and the mark agree.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout)]

use std::error::Error;
use std::io::Write;

use palisade_fence::file::{FencedFile, FencedFolder};
use palisade_fence::object_store::{Bucket, Object};
use palisade_fence::sqlite::Sqlite;
use palisade_fence::{Seal, Sealed, Token};
use palisade_testbench::servers::S3;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [kind, path, token] = arguments.as_slice() else { return Err("usage: fenced KIND PATH TOKEN".into()) };
    let token = Token::new(token.parse()?)?;
    let ended = match kind.as_str() {
        "file" => in_file(FencedFile::open(path)?.seal(token).await?).await,
        "folder" => in_folder(FencedFolder::open(path)?.seal(token).await?).await,
        "sqlite" => in_sqlite(Sqlite::open(path, "numbers").await?.seal(token).await?).await,
        "s3" => in_s3(Bucket::open(S3::client(path)?).await?.object("number")?.seal(token).await?).await,
        other => return Err(format!("{other}: file, folder, sqlite or s3").into()),
    };
    match ended {
        Err(error) if error.overtaken_by().is_some() => say("overtaken"),
        Err(error) => return Err(error.into()),
        Ok(()) => {}
    }
    Ok(())
}

fn say(what: &str) {
    println!("{what}");
    // Without a reader there is no reason to continue.
    if std::io::stdout().flush().is_err() {
        std::process::exit(1);
    }
}

/// The number in a line `TOKEN SEQ NUMBER`; 0 if there is none yet.
fn number(line: Option<Vec<u8>>) -> u64 {
    let line = line.and_then(|line| String::from_utf8(line).ok()).unwrap_or_default();
    line.rsplit(' ').next().and_then(|number| number.parse().ok()).unwrap_or(0)
}

async fn in_file(mut sealed: Sealed<FencedFile>) -> Result<(), palisade_fence::Error> {
    for seq in 1.. {
        let next = number(sealed.contents().await?) + 1;
        sealed.replace(format!("{} {seq} {next}", sealed.token())).await?;
        say(&next.to_string());
    }
    Ok(())
}

async fn in_folder(mut sealed: Sealed<FencedFolder>) -> Result<(), palisade_fence::Error> {
    for seq in 1.. {
        let next = number(sealed.get("number").await?) + 1;
        sealed.put("number", format!("{} {seq} {next}", sealed.token())).await?;
        say(&next.to_string());
    }
    Ok(())
}

async fn in_s3(mut sealed: Sealed<Object>) -> Result<(), palisade_fence::Error> {
    for seq in 1.. {
        let next = number(Some(sealed.get().await?.to_vec())) + 1;
        sealed.put(format!("{} {seq} {next}", sealed.token())).await?;
        say(&next.to_string());
    }
    Ok(())
}

async fn in_sqlite(mut sealed: Sealed<Sqlite>) -> Result<(), palisade_fence::Error> {
    for seq in 1.. {
        let read = sealed.query(|transaction| {
            let sql = "SELECT number FROM numbers";
            transaction.query_row(sql, [], |row| row.get::<_, i64>(0))
        });
        let (next, token) = (read.await? + 1, sealed.token().to_string());
        let write = move |transaction: &rusqlite::Transaction<'_>| {
            let sql = "UPDATE numbers SET token = ?1, seq = ?2, number = ?3";
            transaction.execute(sql, rusqlite::params![token, seq, next])
        };
        sealed.transaction(write).await?;
        say(&next.to_string());
    }
    Ok(())
}
