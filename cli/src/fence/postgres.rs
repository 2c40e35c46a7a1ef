//! `palisade fence postgres`.

use std::io::Write;

use palisade_fence::ErrorKind;
use palisade_fence::postgres::{self, INSTALL, protect_sql};

use super::failed;
use crate::outcome::{Failure, unless_closed};
use crate::stores::postgres::{Connector, describe};
use crate::text::plain;

/// For `--help`.
pub(crate) const EXAMPLES: &str = "\
Examples:
  palisade fence postgres                                        # read it
  palisade fence postgres --protect orders=orders | psql shop
  palisade fence postgres --install postgres://db/shop

Then, from anywhere:
  SELECT palisade_fence.seal('orders', 34);
  BEGIN; SET LOCAL palisade_fence.token = '34'; UPDATE orders SET …; COMMIT;";

const RUN_AGAIN: &str = "Correct the name or the rights, then run the same command again";

/// The options of `palisade fence postgres`.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Install it in this database, or upgrade it, instead of printing it: postgres://user@host/name, with
    /// the password in PGPASSWORD or PALISADE_SECRET, and with ?sslmode=require for TLS
    #[arg(long, value_name = "URL")]
    install: Option<String>,

    /// Protect a table under the mark of a resource; can be repeated
    #[arg(long, value_name = "TABLE=RESOURCE", value_parser = parse_protection)]
    protect: Vec<(String, String)>,

    /// Let a role seal and write; can be repeated
    #[arg(long, value_name = "ROLE")]
    grant: Vec<String>,
}

/// Prints the fence, or installs it.
pub(crate) async fn run(options: &Options) -> Result<(), Failure> {
    let mut out = anstream::stdout().lock();
    let Some(url) = &options.install else {
        let protect = options.protect.iter().map(|(table, resource)| protect_sql(table, resource));
        let protect: Result<Vec<_>, _> = protect.collect();
        let more = protect.map_err(failed)?.into_iter().chain(options.grant.iter().flat_map(|role| grants(role)));
        let more: String = more.map(|sql| format!("{sql};\n")).collect();
        return unless_closed(write!(out, "{INSTALL}{more}"));
    };
    let mut client = Connector::parse(url)?.connect().await?;
    postgres::install(&mut client).await.map_err(failed)?;
    unless_closed(writeln!(out, "palisade_fence is installed"))?;
    for (table, resource) in &options.protect {
        postgres::protect(&mut client, table, resource).await.map_err(|error| match error.kind() {
            ErrorKind::Rejected { what, .. } | ErrorKind::Misuse { what } => Failure::Misuse(format!(
                "cannot protect {}: {what}. palisade_fence is installed, and this table is not changed. {RUN_AGAIN}",
                plain(table)
            )),
            _ => failed(error),
        })?;
        unless_closed(writeln!(out, "{} is protected under the mark of '{}'", plain(table), plain(resource)))?;
    }
    for role in &options.grant {
        client.batch_execute(&grants(role).join("; ")).await.map_err(|error| {
            Failure::Misuse(format!(
                "cannot let {} seal: {}. palisade_fence is installed, tables of --protect are protected, and this role has no \
                 new rights. {RUN_AGAIN}",
                plain(role),
                describe(&error)
            ))
        })?;
        unless_closed(writeln!(out, "{} may seal", plain(role)))?;
    }
    Ok(())
}

fn grants(role: &str) -> [String; 2] {
    let role = role.replace('"', "\"\"");
    [
        format!("GRANT USAGE ON SCHEMA palisade_fence TO \"{role}\""),
        format!("GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA palisade_fence TO \"{role}\""),
    ]
}

fn parse_protection(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((table, resource)) if !table.is_empty() && !resource.is_empty() => {
            Ok((table.to_owned(), resource.to_owned()))
        }
        _ => Err("expected TABLE=RESOURCE, for example orders=orders".to_owned()),
    }
}
