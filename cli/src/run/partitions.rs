//! `palisade partitions`: a command that works on the partitions that this host owns.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::future::pending;
use std::time::Duration;

use palisade::recipe::{Change, Member, Ownership};
use palisade::{BootInstant, Error, Token};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::supervise::{Job, PartitionVariables, Supervised, pass_on};
use super::warded::KillTime;
use super::{CommandArgs, Extras, OnLoss};
use crate::acquire::{AnyGuard, FailoverArgs};
use crate::outcome::{Failure, message_of, say};
use crate::settings::Settings;
use crate::signals::Signals;
use crate::text::{parse_ttl, plain};

/// For `--help`.
pub(crate) const EXAMPLES: &str = "\
Examples:
  palisade partitions orders 64 -- ./worker                  All hosts share 64
  palisade partitions orders 64 --capacity 16 -- ./worker    At most 16 here
  palisade partitions orders 64 --grace 1m -- ./worker       A minute to finish

The command gets PALISADE_PARTITIONS, such as 0,5,9, PALISADE_PARTITION_TOKENS, such as 0:17,5:18,9:21, PALISADE_LOCK with \
the locks of the partitions, PALISADE_SESSION and PALISADE_URL. Pass a partition's token to the resource that it writes to: \
a writer with a lower token has been overtaken. When the partitions change, the command gets TERM, and after --grace KILL.

Exit codes: the command's, if it ends by itself; 128+N if signal N ended it, or palisade; 69 the engine cannot be reached; \
64 misuse; 126 the command was found but cannot be executed; 127 the command was not found.";

/// How long to wait for more changes before the command is started or restarted.
const SETTLE: Duration = Duration::from_millis(200);

/// How long the member waits for a partition that this host has to give up. It must not release one whose command still runs:
/// this process may be late to kill it, and a process in uninterruptible I/O outlives even that.
const MEMBER_GRACE: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// How often to look whether all partitions have room.
const ROOM_CHECK: Duration = Duration::from_secs(1);

/// The options of `palisade partitions`.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// The name that all members use
    #[arg(value_name = "NAME")]
    name: String,

    /// The number of partitions, the same for all members
    #[arg(value_name = "COUNT")]
    count: u32,

    /// The most partitions that this host takes [default: all]
    #[arg(long, value_name = "N")]
    capacity: Option<u32>,

    /// How long the command has between TERM and KILL when the partitions change
    #[arg(long, value_name = "TIME", value_parser = parse_ttl, default_value = "10s")]
    grace: Duration,

    /// How long the partitions outlive a host that stops answering [default: 30s]
    #[arg(long, value_name = "TIME", value_parser = parse_ttl)]
    ttl: Option<Duration>,

    /// The owner's name that other clients see, before host and pid [default: the command's name]
    #[arg(long, value_name = "TEXT")]
    label: Option<String>,

    #[command(flatten)]
    failover: FailoverArgs,

    /// The command, after --
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// Joins the members, and runs the command on the partitions of this host until the command ends by itself.
pub(crate) async fn partitions(options: Options, settings: &Settings, verbose: u8) -> Result<(), Failure> {
    let Options { name, count, capacity, grace, ttl, label, failover, command } = options;
    let command_args = CommandArgs { ttl, on_loss: OnLoss::Term, signed: false, label, command };
    let palisade = command_args.connect_options(settings).connect(&settings.url).await?;
    // From here on a signal must release the session. Before, it may end the process while the engine connects.
    let mut signals = Signals::listen()?;
    let partitions = failover.apply_to_partitions(palisade.partitions(&name, count).grace(MEMBER_GRACE));
    let member = partitions.join(capacity.unwrap_or(count)).await?;
    let mut host =
        Host { member, name, grace, verbose, owned: BTreeMap::new(), losing: BTreeSet::new(), without_room: 0 };
    let ended = host.run(&command_args, settings, &mut signals).await;
    if let Err(error) = host.member.leave().await {
        say(&format!("{}; the partitions end by their TTL at the latest", message_of(&error)));
    }
    ended
}

/// This host as a member. A partition is released only while no command runs.
struct Host {
    member: Member,
    name: String,
    grace: Duration,
    verbose: u8,
    owned: BTreeMap<u32, Ownership>,
    /// The partitions to give up.
    losing: BTreeSet<u32>,
    /// The number of partitions without an owner that was reported last.
    without_room: u32,
}

impl Host {
    async fn run(
        &mut self,
        command_args: &CommandArgs,
        settings: &Settings,
        signals: &mut Signals,
    ) -> Result<(), Failure> {
        loop {
            tokio::select! {
                biased;
                signal = signals.stop_requested() => return Err(Failure::Exit(signal.exit_code())),
                settled = self.settle() => settled?,
            }
            self.report_room();
            let Some(job) = self.job(command_args, settings) else { continue };
            let (stop_by, mut stopped) = watch::channel(None);
            let command = job.supervise(Extras::default(), signals, &mut stopped);
            let mut command = std::pin::pin!(command);
            let supervised = loop {
                tokio::select! {
                    supervised = &mut command => break supervised?,
                    kill_by = self.next_stop(*stop_by.borrow()) => match kill_by {
                        Ok(kill_by) => {
                            stop_by.send_replace(Some(kill_by));
                        }
                        Err(error) => {
                            stop_by.send_replace(Some(KillTime::after(Duration::ZERO)));
                            command.await?;
                            return Err(error.into());
                        }
                    },
                }
            };
            let is_restart = stop_by.borrow().is_some();
            let Supervised { code, by_warden, loss, stop_signal } = supervised;
            let was_lost = by_warden || loss.is_some();
            if let Some(signal) = stop_signal
                && (is_restart || was_lost)
            {
                return Err(Failure::Exit(signal.exit_code()));
            }
            if !is_restart && !was_lost {
                return pass_on(code);
            }
            if let Some(loss) = loss.filter(|_| !is_restart) {
                say(&format!("the partitions of '{}' were lost: {loss}; the command was ended", plain(&self.name)));
            }
        }
    }

    /// Waits until this host owns partitions, and has seen no change for a while. Lets go of those that it is to give up.
    async fn settle(&mut self) -> Result<(), Error> {
        let mut settled_at = Instant::now() + SETTLE;
        loop {
            for partition in std::mem::take(&mut self.losing) {
                self.owned.remove(&partition);
                if let Err(error) = self.member.release(partition).await {
                    // It was lost before, or the release is being retried in the background.
                    self.report(&format!("partition {partition}: {}", message_of(&error)));
                }
            }
            let has_any = !self.owned.is_empty();
            tokio::select! {
                biased;
                change = self.member.next() => {
                    self.note(change?);
                    settled_at = Instant::now() + SETTLE;
                }
                () = sleep_until(settled_at), if has_any => return Ok(()),
                () = tokio::time::sleep(ROOM_CHECK), if !has_any => self.report_room(),
            }
        }
    }

    /// Returns the command for the partitions that this host owns; `None` if one of them was lost just now.
    fn job<'a>(&self, command_args: &'a CommandArgs, settings: &'a Settings) -> Option<Job<'a>> {
        let (_, first) = self.owned.first_key_value()?;
        let held = AnyGuard::Partition(first.clone());
        let token = |(partition, owned): (&u32, &Ownership)| Some((*partition, owned.token().ok()?));
        let tokens: Vec<(u32, Token)> = self.owned.iter().map(token).collect::<Option<_>>()?;
        let join = |text: fn(&(u32, Token)) -> String| tokens.iter().map(text).collect::<Vec<_>>().join(",");
        let partitions = join(|(partition, _)| partition.to_string());
        self.report(&format!("owning partitions {partitions} of '{}'", plain(&self.name)));
        let tokens = join(|(partition, token)| format!("{partition}:{token}"));
        let names = self.owned.values().flat_map(|owned| owned.locks().iter().map(ToString::to_string)).collect();
        let partitions = Some(PartitionVariables { partitions, tokens });
        Some(Job { command_args, names, settings, held, signed: None, partitions })
    }

    /// Waits for the next change after which the running command has to end sooner than before. Returns by when.
    async fn next_stop(&mut self, before: Option<KillTime>) -> Result<KillTime, Error> {
        let mut restart_at = None;
        loop {
            let settled = async {
                match restart_at {
                    Some(at) => sleep_until(at).await,
                    None => pending().await,
                }
            };
            let kill_by = tokio::select! {
                biased;
                change = self.member.next() => match self.note(change?) {
                    Urgency::Restart => {
                        restart_at = Some(Instant::now() + SETTLE);
                        continue;
                    }
                    Urgency::GiveUp(deadline) => {
                        // In jeopardy the deadline may come before the grace has passed. The command's processes need time
                        // to die before it.
                        let margin = (self.grace / 10).min(Duration::from_secs(1));
                        KillTime::before(deadline, margin).or_earlier(Some(KillTime::after(self.grace)))
                    }
                    Urgency::Lost => KillTime::after(Duration::ZERO),
                },
                () = settled => KillTime::after(self.grace),
                () = tokio::time::sleep(ROOM_CHECK) => {
                    self.report_room();
                    continue;
                }
            };
            if before.is_none_or(|before| kill_by.at < before.at) {
                return Ok(kill_by);
            }
            restart_at = None;
        }
    }

    /// Notes a change, and returns how urgently a running command has to end.
    fn note(&mut self, change: Change) -> Urgency {
        match change {
            Change::Gained(ownership) => {
                self.owned.insert(ownership.partition(), ownership);
                Urgency::Restart
            }
            Change::Losing { partition, deadline } => {
                self.losing.insert(partition);
                Urgency::GiveUp(deadline)
            }
            Change::Lost { partition, .. } => {
                self.owned.remove(&partition);
                self.losing.remove(&partition);
                Urgency::Lost
            }
            _ => Urgency::Restart,
        }
    }

    /// Says when partitions have no owner, and when they have one again.
    fn report_room(&mut self) {
        let without_room = self.member.without_room();
        if without_room != self.without_room {
            let (name, members) = (plain(&self.name), self.member.members());
            say(&match without_room {
                0 => format!("all partitions of '{name}' have room again"),
                _ => format!(
                    "{without_room} partitions of '{name}' have no owner: the capacities of all members ({members}) together are too \
                     small. Start more members, or raise --capacity"
                ),
            });
            self.without_room = without_room;
        }
    }

    fn report(&self, message: &str) {
        if self.verbose > 0 {
            say(message);
        }
    }
}

/// How urgently a running command has to end.
enum Urgency {
    /// It runs without the new partitions until it is started again.
    Restart,
    /// Before this deadline.
    GiveUp(BootInstant),
    /// At once: another host may own the partition.
    Lost,
}
