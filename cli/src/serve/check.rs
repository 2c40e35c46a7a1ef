//! `palisade serve --check`: prints the settings, and fails if they cannot be used.

use std::io::Write;
use std::net::SocketAddr;

use palisade_server::Founding;
use palisade_server::sign::PublicKeys;

use super::keys;
use super::plan::{Plan, check_directory};
use crate::outcome::{Failure, unless_closed};
use crate::text::plain;

pub(super) fn check(plan: &Plan) -> Result<(), Failure> {
    let directory = plan.config.data_dir.display();
    let exists = check_directory(&plan.config.data_dir)
        .map_err(|why| Failure::Misuse(format!("the directory {directory} cannot be used: {why}")))?;
    let note = if exists { "" } else { " (will be made)" };
    let mut lines = vec![
        ("config", plan.config_file.as_ref().map_or("none".to_owned(), |file| file.display().to_string())),
        ("data_dir", format!("{directory}{note}")),
        ("resp", listener(plan, plan.resp)),
        ("http", plan.http.map_or("off".to_owned(), |address| listener(plan, address))),
        ("tls", tls(plan)),
        ("users", users(plan)),
        ("signing", signing(plan)?),
    ];
    lines.extend(cluster(plan).map(|cluster| ("cluster", cluster)));
    let bounds = &plan.config.bounds;
    let connections = format!("{} at most, {} of them before login", bounds.connections, bounds.strangers);
    lines.push(("connections", connections));
    let mut out = anstream::stdout().lock();
    unless_closed(lines.iter().try_for_each(|(name, value)| writeln!(out, "{name:<12} {value}")))
}

/// Describes whether tokens are signed, by which key, and which older keys are still valid.
fn signing(plan: &Plan) -> Result<String, Failure> {
    let Some(signer) = &plan.config.signer else { return Ok("off".to_owned()) };
    if !signer.folder().exists() {
        return Ok("on; keys will be made".to_owned());
    }
    let PublicKeys { issuer, keys } = signer.published().map_err(keys::misuse)?;
    let mut kids = keys.iter().rev().map(|key| key.kid.as_str());
    let newest = kids.next().unwrap_or_default();
    let older: Vec<_> = kids.collect();
    let older = if older.is_empty() { String::new() } else { format!("; also valid: {}", older.join(", ")) };
    Ok(format!("for cluster {issuer} with key {newest}{older}"))
}

/// Describes a listening address.
fn listener(plan: &Plan, address: SocketAddr) -> String {
    let tls = if plan.config.tls.is_some() { "encrypted" } else { "not encrypted" };
    let clients = if plan.config.users.is_some() { "users only" } else { "any client" };
    format!("{address} ({tls}, {clients})")
}

/// Describes how the node takes part in a cluster, if it does.
fn cluster(plan: &Plan) -> Option<String> {
    let (config, listen) = (plan.config.cluster.as_ref()?, plan.peers?);
    let Founding { name, founders } = &config.founding;
    let tls = if config.tls.is_some() { "encrypted" } else { "not encrypted" };
    let founders: Vec<_> = founders.iter().map(|(name, address)| format!("{name}={}", plain(address))).collect();
    let how = match founders.is_empty() {
        true => "is a member, or waits to be added".to_owned(),
        false => format!("founded by {}", founders.join(",")),
    };
    Some(format!("node {name}; {how}; listens on {listen} ({tls})"))
}

fn tls(plan: &Plan) -> String {
    let Some(files) = &plan.tls_files else { return "off".to_owned() };
    let clients = match (&files.client_ca, files.client_optional) {
        (None, _) => "clients need no certificate",
        (Some(_), true) => "clients may show a certificate",
        (Some(_), false) => "clients need a certificate",
    };
    format!("{}; {clients}", files.certificate.display())
}

fn users(plan: &Plan) -> String {
    match plan.user_names.as_slice() {
        [] => "none: any client that reaches it may do everything".to_owned(),
        names => names.iter().map(|name| plain(name)).collect::<Vec<_>>().join(", "),
    }
}
