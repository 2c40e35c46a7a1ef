//! Runs a script against a machine.
//!
//! After every command it also checks that
//!
//! - every invariant of the machine holds;
//! - a refusal, or a `busy`, has no events and changed nothing (a numbered request is remembered, and no more);
//! - a replay of the events has the same holders and waiters, and tokens only rise;
//! - a snapshot of the machine restores to the same bytes, and the script goes on with the restored machine;
//! - a twin that was never restored, with another hash key, gives the same answers and has the same bytes.

use std::error::Error;

use goldenscript::{Command as Line, Context};
use palisade_core::{Answer, Applied, Command, Event, Limits, Machine, invariant};

use super::bindings::Bindings;
use super::parse::{self, ParseError};
use super::render;
use super::replay::Replay;

pub(crate) struct Runner {
    machine: Machine,
    twin: Machine,
    bindings: Bindings,
    replay: Replay,
}

impl Runner {
    pub(crate) fn new() -> Runner {
        let machine = Machine::new(Limits::default());
        let twin = machine.clone().with_hash_key(0x5eed);
        Runner { machine, twin, bindings: Bindings::default(), replay: Replay::default() }
    }

    /// Runs one line of a script. The first line of the result is the outcome, the others are events or state.
    fn run_line(&mut self, line: &Line) -> Result<Vec<String>, ParseError> {
        let mut args = line.consume_args();
        let lines = match line.name.as_str() {
            "show" => render::lock(self.machine.lock(&parse::lock(&mut args)?), &self.bindings),
            "history" => render::history(self.machine.lock(&parse::lock(&mut args)?), &self.bindings),
            "locks" => render::locks(&self.machine, &self.bindings),
            "sessions" => render::sessions(&self.machine, &self.bindings),
            "withheld" => render::withheld(&self.machine),
            "snapshot" => self.snapshot(&mut args)?,
            _ => return self.apply(line),
        };
        args.reject_next().map_err(|unexpected| ParseError::Script(unexpected.to_string()))?;
        Ok(lines)
    }

    fn apply(&mut self, line: &Line) -> Result<Vec<String>, ParseError> {
        let limits = self.machine.limits().clone();
        let command = parse::command(line, &self.bindings, &limits)?;
        let opens = match (line.consume_args().next_pos(), &command) {
            (Some(name), Command::OpenSession { .. } | Command::OpenAndAcquire(_)) => Some(name.to_owned()),
            _ => None,
        };
        if let Some(name) = opens.as_ref().filter(|name| self.bindings.contains(name)) {
            return Err(ParseError::Script(format!("there was a session '{name}' already; use another name")));
        }
        let applied = self.apply_checked(command).map_err(ParseError::Script)?;
        for event in &applied.events {
            if let (Some(name), Event::SessionOpened { session, .. }) = (&opens, event) {
                self.bindings.bind(name, *session);
            }
        }
        applied.events.iter().for_each(|event| self.bindings.record(event));
        let mut lines = vec![render::answer(&applied.answer)];
        lines.extend(applied.events.iter().map(|event| render::event(event, &self.bindings, &limits)));
        Ok(lines)
    }

    fn apply_checked(&mut self, command: Command) -> Result<Applied, String> {
        let before = self.machine.snapshot();
        let numbered = command.caller().is_some_and(|caller| caller.number.is_some());
        let applied = self.machine.apply(command.clone());
        invariant::check(&self.machine).map_err(|broken| format!("an invariant is broken: {broken}"))?;
        let after = self.machine.snapshot();

        if matches!(applied.answer, Err(_) | Ok(Answer::Busy)) {
            ensure(applied.events.is_empty(), "a command that was not carried out has events")?;
            ensure(numbered || before == after, "a command that was not carried out changed something")?;
        }
        for event in &applied.events {
            self.replay.apply(event).map_err(|wrong| format!("{event:?}: {wrong}"))?;
        }
        self.replay.compare(&self.machine)?;

        ensure(self.twin.apply(command) == applied, "the second machine gives another answer")?;
        ensure(self.twin.snapshot() == after, "the second machine has another state")?;
        self.machine = Machine::restore(&after).map_err(|refused| format!("not restored: {refused}"))?;
        ensure(self.machine.snapshot() == after, "the restored machine has another state")?;
        Ok(applied)
    }

    /// Restores the machine from its snapshot; with `cut=`, `flip=`, `version=` or `behind=`, from a damaged one.
    fn snapshot(&mut self, args: &mut goldenscript::ArgumentConsumer<'_>) -> Result<Vec<String>, ParseError> {
        let bytes = self.machine.snapshot();
        let mut damaged = bytes.clone();
        while let Some((how, amount)) = args.next_key() {
            let amount: usize =
                amount.parse().map_err(|_| ParseError::Script(format!("'{amount}' is not a number")))?;
            match how {
                "cut" => damaged.truncate(amount),
                "flip" => damaged[amount] ^= 1,
                "version" => damaged[8] = amount as u8,
                "behind" => damaged.resize(damaged.len() + amount, 0),
                other => return Err(ParseError::Script(format!("snapshot has no '{other}'"))),
            }
        }
        match Machine::restore(&damaged) {
            Ok(restored) if restored.snapshot() != bytes => {
                Err(ParseError::Script("restored to something else".to_owned()))
            }
            Ok(restored) => {
                every_damage_is_refused(&bytes)?;
                self.machine = restored;
                Ok(vec![format!("the same again: {}", render::summary(&self.machine))])
            }
            Err(refused) => Ok(vec![format!("refused: {refused}")]),
        }
    }
}

fn ensure(holds: bool, what: &str) -> Result<(), String> {
    if holds { Ok(()) } else { Err(what.to_owned()) }
}

/// Checks that no snapshot with one wrong byte, and no truncated snapshot, is restored.
fn every_damage_is_refused(bytes: &[u8]) -> Result<(), ParseError> {
    for at in 0..bytes.len() {
        let mut damaged = bytes.to_vec();
        damaged[at] = !damaged[at];
        if Machine::restore(&damaged).is_ok() || Machine::restore(&bytes[..at]).is_ok() {
            return Err(ParseError::Script(format!("a snapshot damaged at byte {at} was restored")));
        }
    }
    Ok(())
}

impl goldenscript::Runner for Runner {
    type Command = Line;

    fn run(&mut self, line: &Line, _: &Context) -> Result<String, Box<dyn Error>> {
        match self.run_line(line) {
            Ok(lines) => Ok(format!("{line} → {}", lines.join("\n  "))),
            Err(ParseError::Input(refused)) => Ok(format!("{line} → not a command: {refused}")),
            Err(ParseError::Script(wrong)) => Err(wrong.into()),
        }
    }
}
