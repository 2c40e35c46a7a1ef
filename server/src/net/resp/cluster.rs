//! Replies about the nodes of the cluster.

use std::io::{self, ErrorKind};

use super::Reply;
use crate::node::ChangeRefused;
use crate::peers::{AdminError, AdminReply, AdminResult, ClusterStatus, MemberStatus};
use crate::storage::Membership;

/// Returns the reply to an operator.
pub(super) fn reply(result: AdminResult) -> Reply {
    match result {
        Ok(AdminReply::Status(status)) => self::status(&status),
        Ok(AdminReply::Begun) => Reply::Simple("OK"),
        Ok(AdminReply::Transferring(name)) => Reply::text(name),
        Ok(AdminReply::Backup(number, bytes)) => {
            Reply::Map(vec![("backup", Reply::Number(number)), ("bytes", Reply::Number(bytes))])
        }
        Ok(AdminReply::Part(bytes)) => Reply::Bytes(bytes.to_vec()),
        Err(error) => Reply::Error(code(&error), format!("{error}{}", hint(&error))),
    }
}

fn code(error: &AdminError) -> &'static str {
    match error {
        AdminError::Refused(ChangeRefused::NotLeader) => "NOTLEADER",
        AdminError::Refused(ChangeRefused::Busy) => "BUSY",
        AdminError::NotThere { why, .. } => match why.kind() {
            // The node there refuses, or speaks another protocol: waiting for it does not help.
            ErrorKind::PermissionDenied | ErrorKind::InvalidData => "REFUSED",
            _ if breaks_off(why) => "REFUSED",
            _ => "NOTTHERE",
        },
        _ => "REFUSED",
    }
}

/// Whether the other side has accepted the connection and closed it.
fn breaks_off(why: &io::Error) -> bool {
    matches!(why.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe)
}

/// Returns a sentence about a likely cause that the error does not name.
fn hint(error: &AdminError) -> &'static str {
    match error {
        AdminError::NotThere { why, .. } if breaks_off(why) => {
            ". What listens there closes the connection: one of the two nodes may have no --peer-certificate"
        }
        _ => "",
    }
}

fn status(status: &ClusterStatus) -> Reply {
    let seen = &status.seen;
    let members = status.members.iter().map(|member| self::member(status, member)).collect();
    Reply::Map(vec![
        ("cluster", Reply::text(format!("{:032x}", status.cluster))),
        ("answered_by", Reply::text(name(status, status.answered_by))),
        ("leader", seen.leader.map_or(Reply::Nil, |leader| Reply::text(name(status, leader)))),
        ("term", Reply::Number(seen.term)),
        ("last_index", Reply::Number(seen.last_index)),
        ("members", Reply::Array(members)),
    ])
}

fn name(status: &ClusterStatus, number: u64) -> String {
    let found = status.members.iter().find(|member| member.number == number);
    found.map_or_else(|| format!("{number:x}"), |found| found.member.name.clone())
}

fn member(status: &ClusterStatus, MemberStatus { number, member, said }: &MemberStatus) -> Reply {
    let seen = &status.seen;
    let role = match () {
        () if seen.leader == Some(*number) => "leader",
        () if member.is_leaving => "leaving",
        () if is_voter(&seen.membership, *number) => "follower",
        () => "learner",
    };
    let matched = match seen.followers.iter().find(|follower| follower.member == *number) {
        Some(follower) => Reply::Number(follower.matched),
        None if *number == status.answered_by => Reply::Number(seen.last_index),
        None => Reply::Nil,
    };
    let (report, round_trip, problem) = match said {
        Ok((report, round_trip)) => (Some(report), Reply::Number(round_trip.as_micros() as u64), Reply::Nil),
        Err(why) => (None, Reply::Nil, Reply::text(why.clone())),
    };
    let of = |read: fn(&crate::peers::MemberReport) -> u64| report.map_or(Reply::Nil, |it| Reply::Number(read(it)));
    Reply::Map(vec![
        ("name", Reply::text(member.name.clone())),
        ("number", Reply::text(format!("{number:016x}"))),
        ("address", Reply::text(member.address.clone())),
        ("role", Reply::Text(role)),
        ("matched", matched),
        ("problem", problem),
        ("build", report.map_or(Reply::Nil, |report| Reply::text(report.build.clone()))),
        ("term", of(|report| report.term)),
        ("applied", of(|report| report.applied)),
        ("last_index", of(|report| report.last_index)),
        ("write_us", of(|report| report.write_us)),
        ("round_trip_us", round_trip),
    ])
}

fn is_voter(membership: &Membership, number: u64) -> bool {
    membership.voters.contains(&number)
}
