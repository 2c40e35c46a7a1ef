//! `palisade cluster status`: the nodes.

use std::io::{self, Write};
use std::time::Duration;

use palisade::engine::service::{ClusterStatus, Config, MemberState, MemberStatus, cluster_status};
use serde::Serialize;

use super::failure;
use crate::outcome::{Failure, UNAVAILABLE, unless_closed};
use crate::text::{count, plain, print_json};
use crate::view::table::{Column, print, table};

/// The version of [`Report`], for programs: increased when a field changes its name, place or meaning.
const SCHEMA: u32 = 1;

#[derive(Serialize)]
struct Report<'a> {
    schema: u32,
    cluster: &'a str,
    answered_by: &'a str,
    leader: Option<&'a str>,
    term: u64,
    last_index: u64,
    members: Vec<Member<'a>>,
}

#[derive(Serialize)]
struct Member<'a> {
    name: &'a str,
    number: &'a str,
    address: &'a str,
    role: &'a str,
    /// How many entries it lacks; `null` if that is unknown.
    lag: Option<u64>,
    /// Why it cannot be reached.
    problem: Option<&'a str>,
    version: Option<&'a str>,
    term: Option<u64>,
    applied: Option<u64>,
    last_index: Option<u64>,
    write_us: Option<u64>,
    round_trip_us: Option<u64>,
}

pub(super) async fn run(config: &Config, json: bool) -> Result<(), Failure> {
    let status = cluster_status(config).await.map_err(failure)?;
    let mut out = anstream::stdout().lock();
    unless_closed(match json {
        true => print_json(&report(&status), &mut out),
        false => as_text(&status, &mut out),
    })?;
    match status.leader {
        Some(_) => Ok(()),
        // The table above says which nodes cannot be reached.
        None => Err(Failure::Exit(UNAVAILABLE)),
    }
}

fn report<'a>(status: &'a ClusterStatus) -> Report<'a> {
    let member = |member: &'a MemberStatus| {
        let MemberStatus { name, number, address, role, problem, .. } = member;
        let of = |read: fn(&MemberState) -> u64| member.state.as_ref().map(read);
        Member {
            name,
            number,
            address,
            role,
            lag: lag(status, member),
            problem: problem.as_deref(),
            version: member.state.as_ref().map(|state| state.build.as_str()),
            term: of(|state| state.term),
            applied: of(|state| state.applied),
            last_index: of(|state| state.last_index),
            write_us: of(|state| state.write_us),
            round_trip_us: of(|state| state.round_trip_us),
        }
    };
    Report {
        schema: SCHEMA,
        cluster: &status.cluster,
        answered_by: &status.answered_by,
        leader: status.leader.as_deref(),
        term: status.term,
        last_index: status.last_index,
        members: status.members.iter().map(member).collect(),
    }
}

fn lag(status: &ClusterStatus, member: &MemberStatus) -> Option<u64> {
    if member.problem.is_some() {
        return None;
    }
    let has = member.matched.or(member.state.as_ref().map(|state| state.last_index));
    has.map(|has| status.last_index.saturating_sub(has))
}

fn as_text(status: &ClusterStatus, out: &mut impl Write) -> io::Result<()> {
    use Column::{Short, Text};
    let entries = count(status.last_index, "entry", "entries");
    let away = status.members.iter().filter(|member| member.problem.is_some()).count();
    match status.leader.as_deref() {
        Some("") => writeln!(out, "A service of one node, with {entries} in its log.")?,
        Some(leader) => {
            writeln!(out, "Node {} leads in term {}, with {entries} in its log.", plain(leader), status.term)?;
        }
        None if away == 0 => writeln!(
            out,
            "No node leads, and node {} reaches all others: an election may be under way. Look again in a few seconds.",
            plain(&status.answered_by)
        )?,
        None => writeln!(
            out,
            "No node leads: without a majority no lock can be had. This is what node {} knows.",
            plain(&status.answered_by)
        )?,
    }
    writeln!(out)?;
    let mut rows = table(&[
        Short("NODE"),
        Short("ROLE"),
        Short("ADDRESS"),
        Short("LAG"),
        Short("WRITE"),
        Short("TRIP"),
        Short("VERSION"),
        Text("PROBLEM"),
    ]);
    for member in &status.members {
        let name = if member.name.is_empty() { "-" } else { &member.name };
        let address = if member.address.is_empty() { "-" } else { &member.address };
        let state = member.state.as_ref();
        let time = |read: fn(&MemberState) -> u64| state.map_or("-".to_owned(), |state| micros(read(state)));
        rows.add_row([
            plain(name),
            plain(role(member)),
            plain(address),
            lag(status, member).map_or("?".to_owned(), |lag| lag.to_string()),
            time(|state| state.write_us),
            time(|state| state.round_trip_us),
            state.map_or("-".to_owned(), |state| plain(&state.build)),
            member.problem.as_deref().map_or("-".to_owned(), plain),
        ]);
    }
    print(&rows, out)?;
    out.flush()
}

/// Returns the role of a node. Of one that votes and cannot be reached, it is not known what it does now.
fn role(member: &MemberStatus) -> &str {
    if member.problem.is_some() && member.role == "follower" { "?" } else { &member.role }
}

fn micros(us: u64) -> String {
    match Duration::from_micros(us) {
        time if time < Duration::from_millis(10) => format!("{:.1} ms", time.as_secs_f64() * 1e3),
        time => format!("{} ms", time.as_millis()),
    }
}
