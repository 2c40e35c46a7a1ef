//! The syntax of the scripts.
//!
//! ```text
//! open alice [ttl=10s] [label=...]           close alice              expire alice
//! acquire alice a [wait] [reenter] [delay=15s] [value=...] [req=7]
//! acquire alice a shared b gpu permits=2/4   (the mode stands behind its lock; without one: exclusive)
//! release a token=1 [by=alice] [req=8]       publish alice a token=1 value=... [req=9]
//! cancel alice a [req=9]                     (the wait by its lock; or ticket=3, or request=7)
//! force a by=ops reason=... [only=3]         resize gpu 8             enddelay a token=1
//! raise above=100                            limits name_bytes=8 sessions=2 ...
//! take carol a b [secret=...] [ttl=10s|none] [renew] [wait]   (opens a session for this request)
//! extend a b secret=... ttl=5s               give a b secret=...      (release by the secret)
//! ```
//!
//! The runner has the read-only lines: `show a`, `history a`, `locks`, `sessions`, `withheld`, `snapshot`.
//!
//! A session is named as it was opened, or by any number. A text `x@600` stands for 600 times `x`.

use std::fmt;

use goldenscript::{Argument, ArgumentConsumer};
use palisade_core::{
    Acquire, BadName, BadNumber, Caller, Command, Delay, Label, Limits, LockName, LockNames, Mode, OpenAndAcquire,
    Patience, Reentry, RequestNo, Secret, SessionId, Token, Ttl, Value, Waiting, Want,
};

use super::bindings::Bindings;

/// Why a line of a script is not a command.
#[derive(Debug)]
pub(crate) enum ParseError {
    /// The command cannot be built: a host would refuse this input.
    Input(String),
    /// The script itself is wrong.
    Script(String),
}

impl From<BadName> for ParseError {
    fn from(bad: BadName) -> ParseError {
        ParseError::Input(bad.to_string())
    }
}

impl From<BadNumber> for ParseError {
    fn from(bad: BadNumber) -> ParseError {
        ParseError::Input(bad.to_string())
    }
}

fn script(what: impl fmt::Display) -> ParseError {
    ParseError::Script(what.to_string())
}

type Args<'a> = ArgumentConsumer<'a>;

/// Parses a line into a command. `now` are the limits in force.
pub(crate) fn command(
    line: &goldenscript::Command,
    bindings: &Bindings,
    now: &Limits,
) -> Result<Command, ParseError> {
    let mut args = line.consume_args();
    let command = match line.name.as_str() {
        "open" => {
            let name = pos(&mut args, "a session's name")?;
            let ttl = Ttl::from_ms(millis(args.take_key("ttl").unwrap_or("10s"))?)?;
            let label = Label::new(&text(args.take_key("label").unwrap_or(name)));
            Command::OpenSession { session: bindings.next_session(), ttl, label }
        }
        "close" => Command::CloseSession { session: bindings.session(pos(&mut args, "a session")?)? },
        "expire" => Command::ExpireSession { session: bindings.session(pos(&mut args, "a session")?)? },
        "acquire" => Command::Acquire(acquire(line, bindings)?),
        "release" => {
            let by = args.take_key("by").map(|name| bindings.session(name)).transpose()?;
            let number = request(&mut args)?;
            let caller = match (by, number) {
                (Some(session), number) => Some(Caller { session, number }),
                (None, None) => None,
                (None, Some(_)) => return Err(script("req= needs by=")),
            };
            Command::Release { caller, lock: lock(&mut args)?, token: token(&mut args, "token")? }
        }
        "cancel" => cancel(&mut args, bindings)?,
        "publish" => {
            let session = bindings.session(pos(&mut args, "a session")?)?;
            let caller = Caller { session, number: request(&mut args)? };
            let (lock, token) = (lock(&mut args)?, token(&mut args, "token")?);
            let value = Value::new(text(key(&mut args, "value")?).as_bytes());
            Command::Publish { caller, lock, token, value }
        }
        "force" => Command::ForceRelease {
            lock: lock(&mut args)?,
            only: args.take_key("only").map(parse_token).transpose()?,
            by: Label::new(&text(key(&mut args, "by")?)),
            reason: Label::new(&text(key(&mut args, "reason")?)),
        },
        "resize" => {
            Command::Resize { lock: lock(&mut args)?, limit: number(pos(&mut args, "a number of permits")?)? }
        }
        "enddelay" => Command::EndDelay { lock: lock(&mut args)?, token: token(&mut args, "token")? },
        "raise" => Command::RaiseTokens { above: token(&mut args, "above")? },
        "limits" => {
            let mut limits = now.clone();
            while let Some((name, value)) = args.next_key() {
                *limit(&mut limits, name)? = number(value)?;
            }
            Command::Configure { limits }
        }
        "take" => Command::OpenAndAcquire(take(line, bindings)?),
        "extend" => Command::ExtendHeld {
            secret: secret(&mut args).ok_or_else(|| script("secret= is missing"))?,
            ttl: Ttl::from_ms(millis(key(&mut args, "ttl")?)?)?,
            locks: locks(&mut args)?,
        },
        "give" => Command::ReleaseHeld {
            secret: secret(&mut args).ok_or_else(|| script("secret= is missing"))?,
            locks: locks(&mut args)?,
        },
        other => return Err(script(format!("unknown command '{other}'"))),
    };
    if !matches!(line.name.as_str(), "acquire" | "take") {
        args.reject_next().map_err(script)?;
    }
    Ok(command)
}

fn secret(args: &mut Args<'_>) -> Option<Secret> {
    args.take_key("secret").map(|secret| Secret::new(secret.as_bytes()))
}

fn locks(args: &mut Args<'_>) -> Result<LockNames, ParseError> {
    let mut locks = LockNames::new();
    while let Some(name) = args.next_pos() {
        locks.push(LockName::new(&text(name))?);
    }
    Ok(locks)
}

fn take(line: &goldenscript::Command, bindings: &Bindings) -> Result<OpenAndAcquire, ParseError> {
    let mut args = line.consume_args();
    let label = Label::new(pos(&mut args, "a session's name")?);
    let ttl = match args.take_key("ttl").unwrap_or("10s") {
        "none" => Ttl::ENDLESS,
        ttl => Ttl::from_ms(millis(ttl)?)?,
    };
    let secret = secret(&mut args);
    let renews = line.args.iter().any(|arg| matches!(arg, Argument::Positional(word) if word == "renew"));
    let args = args.filter(|arg| !matches!(arg, Argument::Positional(word) if word == "renew"));
    Ok(OpenAndAcquire { ttl, label, secret, renews, acquire: wanted(bindings.next_session(), args)? })
}

fn acquire(line: &goldenscript::Command, bindings: &Bindings) -> Result<Acquire, ParseError> {
    let mut args = line.consume_args();
    let session = bindings.session(pos(&mut args, "a session")?)?;
    wanted(session, args)
}

/// Parses the locks and the options of a request.
fn wanted<'a>(session: SessionId, args: impl IntoIterator<Item = &'a Argument>) -> Result<Acquire, ParseError> {
    let mut request = Acquire::many(session, []);
    for arg in args {
        match arg {
            Argument::Positional(word) => match word.as_str() {
                "wait" => request.patience = Patience::Wait,
                "reenter" => request.reentry = Reentry::Queue,
                "shared" => *last_mode(&mut request)? = Mode::Shared,
                name => request.wants.push(Want { lock: LockName::new(&text(name))?, mode: Mode::Exclusive }),
            },
            Argument::KeyValue(key, value) => match key.as_str() {
                "permits" => {
                    let (count, of) = value.split_once('/').ok_or_else(|| script("permits are written 2/4"))?;
                    *last_mode(&mut request)? = Mode::Permits { count: number(count)?, of: number(of)? };
                }
                "delay" => request.delay = Some(Delay::from_ms(millis(value)?)?),
                "value" => request.value = Some(Value::new(text(value).as_bytes())),
                "req" => request.caller.number = Some(RequestNo::new(number(value)?)?),
                other => return Err(script(format!("acquire has no '{other}'"))),
            },
            other => return Err(script(format!("unexpected argument '{other}'"))),
        }
    }
    Ok(request)
}

fn last_mode(request: &mut Acquire) -> Result<&mut Mode, ParseError> {
    request.wants.last_mut().map(|want| &mut want.mode).ok_or_else(|| script("a mode stands behind its lock"))
}

fn cancel(args: &mut Args<'_>, bindings: &Bindings) -> Result<Command, ParseError> {
    let session = bindings.session(pos(args, "a session")?)?;
    let caller = Caller { session, number: request(args)? };
    let waiting = match (args.take_key("request"), args.take_key("ticket")) {
        (Some(wanted), _) => Waiting::Request(RequestNo::new(number(wanted)?)?),
        (None, Some(arrival)) => Waiting::Ticket(bindings.ticket(number(arrival)?)?),
        (None, None) => Waiting::Ticket(bindings.wait(session, &lock(args)?)?),
    };
    Ok(Command::Cancel { caller, waiting })
}

fn limit<'a>(limits: &'a mut Limits, name: &str) -> Result<&'a mut u32, ParseError> {
    Ok(match name {
        "name_bytes" => &mut limits.name_bytes,
        "label_bytes" => &mut limits.label_bytes,
        "value_bytes" => &mut limits.value_bytes,
        "sessions" => &mut limits.sessions,
        "locks" => &mut limits.locks,
        "locks_per_session" => &mut limits.locks_per_session,
        "locks_per_request" => &mut limits.locks_per_request,
        "waiters_per_lock" => &mut limits.waiters_per_lock,
        "ttl_min_ms" => &mut limits.ttl_min_ms,
        "ttl_max_ms" => &mut limits.ttl_max_ms,
        "delay_max_ms" => &mut limits.delay_max_ms,
        "history_per_lock" => &mut limits.history_per_lock,
        "answers_per_session" => &mut limits.answers_per_session,
        other => return Err(script(format!("there is no limit '{other}'"))),
    })
}

fn pos<'a>(args: &mut Args<'a>, what: &str) -> Result<&'a str, ParseError> {
    args.next_pos().ok_or_else(|| script(format!("{what} is missing")))
}

fn key<'a>(args: &mut Args<'a>, name: &str) -> Result<&'a str, ParseError> {
    args.take_key(name).ok_or_else(|| script(format!("{name}= is missing")))
}

/// Parses the next argument as a lock's name.
pub(crate) fn lock(args: &mut Args<'_>) -> Result<LockName, ParseError> {
    Ok(LockName::new(&text(pos(args, "a lock")?))?)
}

fn token(args: &mut Args<'_>, name: &str) -> Result<Token, ParseError> {
    parse_token(key(args, name)?)
}

fn parse_token(text: &str) -> Result<Token, ParseError> {
    Ok(Token::new(number(text)?)?)
}

fn request(args: &mut Args<'_>) -> Result<Option<RequestNo>, ParseError> {
    args.take_key("req").map(|text| Ok(RequestNo::new(number(text)?)?)).transpose()
}

fn number<N: std::str::FromStr>(text: &str) -> Result<N, ParseError> {
    text.parse().map_err(|_| script(format!("'{text}' is not a number that fits")))
}

fn millis(text: &str) -> Result<u64, ParseError> {
    let (digits, unit) = match (text.strip_suffix("ms"), text.strip_suffix('s')) {
        (Some(digits), _) => (digits, 1),
        (None, Some(digits)) => (digits, 1000),
        (None, None) => return Err(script(format!("'{text}' is not a time: write 10s or 500ms"))),
    };
    Ok(number::<u64>(digits)? * unit)
}

/// Expands `x@600` to 600 times `x`. Returns other texts unchanged.
fn text(word: &str) -> String {
    match word.split_once('@').and_then(|(what, times)| Some((what, times.parse().ok()?))) {
        Some((what, times)) => what.repeat(times),
        None => word.to_owned(),
    }
}
