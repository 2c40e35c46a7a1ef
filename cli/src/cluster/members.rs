//! `palisade cluster add`, `remove` and `transfer`.

use std::io::{IsTerminal, stderr};
use std::time::{Duration, Instant};

use palisade::engine::service::{
    ClusterError, ClusterStatus, Config, MemberStatus, cluster_add, cluster_remove, cluster_status, cluster_transfer,
};
use palisade_server::storage::Member;
use tokio::time::sleep;

use super::failure;
use crate::outcome::{Failure, say};
use crate::spinner::Spinner;
use crate::text::{list, plain};

/// The pause between two attempts, or two looks at the cluster.
const PAUSE: Duration = Duration::from_millis(100);
/// How long to wait for a change that is not finished.
const TIMEOUT: Duration = Duration::from_secs(30);
/// How long to wait for a node that leads. An election takes a second or two.
const LEADER_TIMEOUT: Duration = Duration::from_secs(5);
const NO_LEADER: &str = "no node leads now";

/// How long to wait before the reason is printed.
const QUIET: Duration = Duration::from_secs(1);

/// A request that is repeated until it is accepted, and what it waits for.
struct Progress {
    until: Instant,
    spinner: Option<Spinner>,
    began: Instant,
    /// Whether the reason was printed, where there is no terminal.
    is_told: bool,
    /// Whether a node has accepted the request.
    has_begun: bool,
    /// Since when no node leads.
    leaderless_since: Option<Instant>,
}

impl Progress {
    fn new(timeout: Duration) -> Progress {
        let spinner = stderr().is_terminal().then(Spinner::default);
        let began = Instant::now();
        let until = began + timeout;
        Progress { until, spinner, began, is_told: false, has_begun: false, leaderless_since: None }
    }

    /// Waits for the next attempt while no node leads. Fails after a few seconds: without a majority no wait helps.
    async fn pause_leaderless(&mut self, config: &Config, what: &str, why: &str) -> Result<(), Failure> {
        let since = *self.leaderless_since.get_or_insert_with(Instant::now);
        if since.elapsed() < LEADER_TIMEOUT {
            return self.pause(what, why).await;
        }
        self.until = Instant::now();
        let why = no_leader(config).await.unwrap_or_else(|| why.to_owned());
        self.pause(what, &why).await
    }

    /// Waits for the next attempt. Fails with the last reason once the time has passed.
    async fn pause(&mut self, what: &str, why: &str) -> Result<(), Failure> {
        if let Some(spinner) = &mut self.spinner {
            spinner.redraw(&format!("{what}: {why}"));
        } else if !self.is_told && self.began.elapsed() > QUIET {
            say(&format!("{what}: {why}; waiting"));
            self.is_told = true;
        }
        if Instant::now() >= self.until {
            self.spinner = None;
            return Err(Failure::Unavailable(match self.has_begun {
                true => format!("{what} has begun, and goes on by itself: {why}"),
                false => format!("{what} failed, and nothing was changed: {why}"),
            }));
        }
        sleep(PAUSE).await;
        Ok(())
    }
}

/// Adds a node, and waits until it votes.
pub(super) async fn add(config: &Config, node: &Member, timeout: Duration) -> Result<(), Failure> {
    let (name, address) = (&node.name, &node.address);
    let mut progress = Progress::new(timeout);
    let what = format!("adding node {name}");
    let mut is_repeated = false;
    until_led(config, &mut progress, &what).await?;
    loop {
        match cluster_add(config, name, address).await {
            Ok(()) => break,
            Err(ClusterError::NotThere(why)) => {
                if !progress.is_told {
                    say(&format!("{}. Waiting for it", plain(&why)));
                    progress.is_told = true;
                }
                progress.pause(&what, &plain(&why)).await?;
            }
            // The answer to an earlier attempt may have been lost.
            Err(ClusterError::Refused(_)) if is_repeated && is_member(config, name).await => break,
            Err(error) => repeatable(config, &mut progress, &what, error).await?,
        }
        is_repeated = true;
    }
    progress.has_begun = true;
    look(config, &mut progress, &what, |status| match status.members.iter().find(|member| member.name == *name) {
        Some(member) if has_vote(member) => None,
        Some(MemberStatus { problem: Some(problem), .. }) => {
            Some(format!("the log does not reach it: {}", plain(problem)))
        }
        Some(_) => Some("it receives the log".to_owned()),
        None => Some("the leader has not added it yet; if it died before it could, repeat the command".to_owned()),
    })
    .await?;
    drop(progress);
    say(&format!("node {name} is a member of the cluster now, and votes"));
    Ok(())
}

fn has_vote(member: &MemberStatus) -> bool {
    ["leader", "follower"].contains(&member.role.as_str())
}

/// Returns whether a node with this name is a member, for all that can be found out.
async fn is_member(config: &Config, name: &str) -> bool {
    cluster_status(config).await.is_ok_and(|status| status.members.iter().any(|member| member.name == name))
}

/// Removes a node, and waits until it is gone.
pub(super) async fn remove(config: &Config, name: &str) -> Result<(), Failure> {
    let mut progress = Progress::new(TIMEOUT);
    let what = format!("removing node {}", plain(name));
    let mut is_repeated = false;
    until_led(config, &mut progress, &what).await?;
    while let Err(error) = cluster_remove(config, name).await {
        // The answer to an earlier attempt may have been lost.
        if matches!(error, ClusterError::Refused(_)) && is_repeated && !is_member(config, name).await {
            break;
        }
        repeatable(config, &mut progress, &what, error).await?;
        is_repeated = true;
    }
    progress.has_begun = true;
    look(config, &mut progress, &what, |status| {
        let leaving = status.members.iter().find(|member| member.name == name)?;
        Some(if has_vote(leaving) { "it loses its vote" } else { "it has no vote any more" }.to_owned())
    })
    .await?;
    drop(progress);
    say(&format!("node {} is removed; it can come back only with an empty directory", plain(name)));
    Ok(())
}

/// Lets another node lead, and waits until it does.
pub(super) async fn transfer(config: &Config, name: Option<&str>) -> Result<(), Failure> {
    let mut progress = Progress::new(TIMEOUT);
    let what = "letting another node lead";
    let before = loop {
        match cluster_status(config).await {
            Ok(ClusterStatus { leader: Some(leader), .. }) => break leader,
            Ok(_) => progress.pause_leaderless(config, what, NO_LEADER).await?,
            Err(error) => repeatable(config, &mut progress, what, error).await?,
        }
    };
    if name == Some(before.as_str()) {
        say(&format!("node {} leads already", plain(&before)));
        return Ok(());
    }
    let is_done = |status: &ClusterStatus| match (&status.leader, name) {
        (Some(leader), Some(name)) => leader == name,
        (Some(leader), None) => *leader != before,
        (None, _) => false,
    };
    let leader = loop {
        // It may be refused while the new leader does not know yet that it leads.
        if let Err(error) = cluster_transfer(config, name).await {
            repeatable(config, &mut progress, what, error).await?;
        }
        // A transfer that did not come about is tried again.
        let look_until = Instant::now() + Duration::from_secs(3);
        let mut found = None;
        while found.is_none() && Instant::now() < look_until {
            match cluster_status(config).await {
                Ok(status) if is_done(&status) => found = status.leader,
                _ => progress.pause(what, "it has begun").await?,
            }
        }
        if let Some(leader) = found {
            break leader;
        }
    };
    drop(progress);
    say(&format!("node {} leads now", plain(&leader)));
    Ok(())
}

/// Waits before a request is repeated, if that can help.
async fn repeatable(
    config: &Config,
    progress: &mut Progress,
    what: &str,
    error: ClusterError,
) -> Result<(), Failure> {
    if let ClusterError::NoLeader(why) = &error {
        return progress.pause_leaderless(config, what, &plain(why)).await;
    }
    progress.leaderless_since = None;
    match &error {
        ClusterError::Busy(why) => progress.pause(what, &plain(why)).await,
        ClusterError::Failed(why) if why.is_retryable() => progress.pause(what, &plain(&why.to_string())).await,
        _ => Err(failure(error)),
    }
}

/// Waits until a node leads. Without one, a node could answer only that too few of the others run.
async fn until_led(config: &Config, progress: &mut Progress, what: &str) -> Result<(), Failure> {
    while let Ok(ClusterStatus { leader: None, .. }) = cluster_status(config).await {
        progress.pause_leaderless(config, what, NO_LEADER).await?;
    }
    progress.leaderless_since = None;
    Ok(())
}

/// Says which nodes must be started before one can lead.
async fn no_leader(config: &Config) -> Option<String> {
    let status = cluster_status(config).await.ok().filter(|status| status.leader.is_none())?;
    let (count, away) = (status.members.len(), away(&status));
    let running = count - away.len();
    let verb = if running == 1 { "runs" } else { "run" };
    Some(match away.as_slice() {
        [] => format!("no node leads, though all {count} run and reach each other; try again in a moment"),
        away => format!(
            "no node leads: {running} of {count} nodes {verb}; start {}, or see `palisade cluster recover` if they are lost for \
             good",
            list(away)
        ),
    })
}

/// Returns the nodes that cannot be reached.
fn away(status: &ClusterStatus) -> Vec<String> {
    status.members.iter().filter(|member| member.problem.is_some()).map(|member| plain(&member.name)).collect()
}

/// Looks at the cluster until there is nothing left to wait for.
async fn look(
    config: &Config,
    progress: &mut Progress,
    what: &str,
    waits_for: impl Fn(&ClusterStatus) -> Option<String>,
) -> Result<(), Failure> {
    loop {
        match cluster_status(config).await {
            Ok(status) if status.leader.is_none() => progress.pause_leaderless(config, what, NO_LEADER).await?,
            Ok(status) => {
                progress.leaderless_since = None;
                match waits_for(&status) {
                    None => return Ok(()),
                    Some(why) => progress.pause(what, &why).await?,
                }
            }
            Err(error) => repeatable(config, progress, what, error).await?,
        }
    }
}
