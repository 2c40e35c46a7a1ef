//! Commands as they go over the line: arrays of byte strings.

use std::io::Write;

use palisade_core::{
    Acquire, Label, Limit, LockName, Mode, Patience, Refusal, RequestNo, SessionId, Token, Ttl, Want,
};

/// The longest text or value that is sent; the service closes a line on which more comes at once.
const LONGEST: usize = 64 << 10;
/// The most locks in one request, for the same reason.
const MOST_LOCKS: usize = 128;
/// How many locks a page of a list has.
const PAGE: u64 = 200;

/// A command, ready to be sent. It cannot be shown: a secret may be in it.
#[derive(Clone)]
pub(super) struct Command {
    /// The words, each with its length, without how many they are.
    words: Vec<u8>,
    count: usize,
}

impl Command {
    fn new(words: &[&str]) -> Command {
        words.iter().fold(Command { words: Vec::with_capacity(128), count: 0 }, |command, word| command.text(word))
    }

    fn bytes(mut self, word: &[u8]) -> Command {
        // A vector takes everything.
        let _ = write!(self.words, "${}\r\n", word.len());
        self.words.extend_from_slice(word);
        self.words.extend_from_slice(b"\r\n");
        self.count += 1;
        self
    }

    fn text(self, word: &str) -> Command {
        self.bytes(word.as_bytes())
    }

    fn number(self, number: u64) -> Command {
        let mut digits = [0; 20];
        let mut rest = &mut digits[..];
        let _ = write!(rest, "{number}");
        let unused = rest.len();
        self.bytes(&digits[..20 - unused])
    }

    fn session(self, session: SessionId) -> Command {
        self.text("SESSION").number(session.get())
    }

    fn label(self, label: &Label) -> Result<Command, Refusal> {
        at_most(Limit::LabelBytes, label.as_str().len(), LONGEST)?;
        Ok(self.text(label.as_str()))
    }

    /// Appends it as it goes over the line.
    pub(super) fn encode(&self, into: &mut Vec<u8>) {
        let _ = write!(into, "*{}\r\n", self.count);
        into.extend_from_slice(&self.words);
    }

    pub(super) fn hello(login: Option<(&str, &str)>) -> Command {
        match login {
            None => Command::new(&["HELLO", "3"]),
            Some((user, secret)) => Command::new(&["HELLO", "3", "AUTH", user, secret]),
        }
    }

    pub(super) fn detail() -> Command {
        Command::new(&["CLIENT", "DETAIL", "ON"])
    }

    pub(super) fn ping() -> Command {
        Command::new(&["PING"])
    }

    pub(super) fn open(ttl: Ttl, label: &Label) -> Result<Command, Refusal> {
        Command::new(&["SESSION", "OPEN"]).number(ttl.as_ms()).text("LABEL").label(label)
    }

    pub(super) fn keep_alive(session: SessionId) -> Command {
        Command::new(&["SESSION", "KEEPALIVE"]).number(session.get())
    }

    pub(super) fn close(session: SessionId) -> Command {
        Command::new(&["SESSION", "CLOSE"]).number(session.get())
    }

    pub(super) fn attach(session: SessionId) -> Command {
        Command::new(&["SESSION", "ATTACH"]).number(session.get())
    }

    pub(super) fn acquire(ask: &Acquire) -> Result<Command, Refusal> {
        let mut command = match (&ask.value, ask.wants.as_slice()) {
            (_, []) => return Err(Refusal::NoLocks),
            (Some(value), [want]) if want.mode == Mode::Exclusive => {
                at_most(Limit::ValueBytes, value.as_bytes().len(), LONGEST)?;
                let command = Command::new(&["CAMPAIGN", want.lock.as_str()]).session(ask.caller.session);
                command.text("VALUE").bytes(value.as_bytes())
            }
            (Some(_), _) => return Err(Refusal::ValueNotPossible),
            (None, [want]) => {
                let command = Command::new(&["LOCK", "ACQUIRE", want.lock.as_str()]);
                command.session(ask.caller.session).mode(want.mode)
            }
            (None, wants) => {
                at_most(Limit::LocksPerRequest, wants.len(), MOST_LOCKS)?;
                let command = Command::new(&["LOCK", "ALL"]).number(wants.len() as u64);
                wants.iter().fold(command, Command::want).session(ask.caller.session)
            }
        };
        if let Some(delay) = ask.delay {
            command = command.text("DELAY").number(delay.as_ms());
        }
        if let Some(number) = ask.caller.number {
            command = command.text("REQ").number(number.get());
        }
        Ok(if ask.patience == Patience::Wait { command.text("ASYNC") } else { command })
    }

    fn want(self, want: &Want) -> Command {
        let command = self.text(want.lock.as_str());
        match want.mode {
            Mode::Exclusive => command.text("EXCLUSIVE"),
            Mode::Shared => command.text("SHARED"),
            Mode::Permits { count, of } => command.text(&format!("{count}/{of}")),
        }
    }

    fn mode(self, mode: Mode) -> Command {
        match mode {
            Mode::Exclusive => self,
            Mode::Shared => self.text("SHARED"),
            Mode::Permits { count, of } => self.text("PERMITS").number(count.into()).text("OF").number(of.into()),
        }
    }

    pub(super) fn cancel(session: SessionId, number: RequestNo) -> Command {
        Command::new(&["LOCK", "CANCEL"]).session(session).text("REQ").number(number.get())
    }

    pub(super) fn release(session: SessionId, lock: &LockName, token: Token) -> Command {
        Command::new(&["LOCK", "RELEASE", lock.as_str()]).number(token.get()).session(session)
    }

    pub(super) fn sign(session: SessionId, lock: &LockName, token: Token) -> Command {
        Command::new(&["LOCK", "SIGN", lock.as_str()]).number(token.get()).session(session)
    }

    pub(super) fn publish(
        session: SessionId,
        lock: &LockName,
        token: Token,
        value: &[u8],
    ) -> Result<Command, Refusal> {
        at_most(Limit::ValueBytes, value.len(), LONGEST)?;
        let command = Command::new(&["LOCK", "PUBLISH", lock.as_str()]).number(token.get());
        Ok(command.session(session).text("VALUE").bytes(value))
    }

    pub(super) fn force_release(
        lock: &LockName,
        only: Option<Token>,
        by: &Label,
        reason: &Label,
    ) -> Result<Command, Refusal> {
        let mut command = Command::new(&["LOCK", "BREAK", lock.as_str(), "REASON"]).label(reason)?;
        if let Some(token) = only {
            command = command.text("TOKEN").number(token.get());
        }
        command.text("BY").label(by)
    }

    pub(super) fn resize(lock: &LockName, limit: u32) -> Command {
        Command::new(&["LOCK", "RESIZE", lock.as_str()]).number(limit.into())
    }

    pub(super) fn raise_tokens(above: Token) -> Command {
        Command::new(&["TOKENS", "RAISE"]).number(above.get())
    }

    pub(super) fn show(lock: &LockName, cursor: u64) -> Command {
        Command::new(&["LOCK", "SHOW", lock.as_str(), "CURSOR"]).number(cursor)
    }

    pub(super) fn list(prefix: &str, cursor: u64) -> Command {
        Command::new(&["LOCK", "LIST", sent(prefix), "CURSOR"]).number(cursor).text("COUNT").number(PAGE)
    }

    pub(super) fn watch(prefix: &str) -> Command {
        Command::new(&["LOCK", "WATCH", sent(prefix)])
    }

    pub(super) fn unwatch(prefix: &str) -> Command {
        Command::new(&["LOCK", "UNWATCH", sent(prefix)])
    }
}

fn at_most(limit: Limit, value: usize, max: usize) -> Result<(), Refusal> {
    if value > max { Err(Refusal::OverLimit { limit, max: max as u64, value: value as u64 }) } else { Ok(()) }
}

/// As much of a prefix as a name can have. What comes is compared with all of it.
fn sent(prefix: &str) -> &str {
    let mut end = prefix.len().min(LockName::MAX_BYTES);
    while !prefix.is_char_boundary(end) {
        end -= 1;
    }
    &prefix[..end]
}

#[cfg(test)]
mod tests {
    use super::*;
    use palisade_core::{Delay, Reentry};

    fn sent_as(command: &Command) -> String {
        let mut bytes = Vec::new();
        command.encode(&mut bytes);
        let text = String::from_utf8(bytes).expect("it is text");
        let words: Vec<_> = text.split("\r\n").skip(1).filter(|word| !word.starts_with('$')).collect();
        let count = words.len() - 1;
        assert!(text.starts_with(&format!("*{count}\r\n")), "{text}");
        words[..count].join(" ")
    }

    fn ask(wants: &[(&str, Mode)]) -> Acquire {
        let session = SessionId::new(7).expect("not zero");
        let want = |(lock, mode): &(&str, Mode)| Want { lock: LockName::new(lock).expect("a name"), mode: *mode };
        let number = RequestNo::new(3).ok();
        Acquire {
            reentry: Reentry::Queue,
            ..Acquire::many(palisade_core::Caller { session, number }, wants.iter().map(want))
        }
    }

    #[test]
    fn an_acquire_says_everything_it_was_asked() {
        let said = |ask: &Acquire| sent_as(&Command::acquire(ask).expect("it can be said"));
        assert_eq!(said(&ask(&[("a", Mode::Exclusive)])), "LOCK ACQUIRE a SESSION 7 REQ 3");
        let delayed = Acquire {
            patience: Patience::Wait,
            delay: Delay::from_ms(20).ok(),
            ..ask(&[("a", Mode::Permits { count: 2, of: 5 })])
        };
        assert_eq!(said(&delayed), "LOCK ACQUIRE a SESSION 7 PERMITS 2 OF 5 DELAY 20 REQ 3 ASYNC");
        let set = ask(&[("session", Mode::Shared), ("TTL", Mode::Permits { count: 2, of: 5 })]);
        assert_eq!(said(&set), "LOCK ALL 2 session SHARED TTL 2/5 SESSION 7 REQ 3");
        let value = Some(palisade_core::Value::new(b"here"));
        let candidate = Acquire { value: value.clone(), ..ask(&[("a", Mode::Exclusive)]) };
        assert_eq!(said(&candidate), "CAMPAIGN a SESSION 7 VALUE here REQ 3");
        let shared = Acquire { value, ..ask(&[("a", Mode::Shared)]) };
        assert_eq!(Command::acquire(&shared).map(drop), Err(Refusal::ValueNotPossible));
        assert_eq!(Command::acquire(&ask(&[])).map(drop), Err(Refusal::NoLocks));
    }

    #[test]
    fn a_long_prefix_is_cut_where_a_character_ends() {
        let prefix = "é".repeat(600);
        assert_eq!(sent(&prefix).len(), 1024);
        assert_eq!(sent(&format!("a{prefix}")).len(), 1023);
    }
}
