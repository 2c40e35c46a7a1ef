//! One event as one line: for people, and as JSON.

use std::io;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::builder::styling::{AnsiColor, Style};
use palisade::{Departure, Ending, Event, LockName, SessionEnd, SessionId, Token};
use serde::Serialize;

use super::report::{Published, SCHEMA};
use crate::text;

/// Something that happened, with whatever is known of it.
#[derive(Serialize)]
pub(super) struct Happening<'a> {
    schema: u32,
    at_unix_ms: u64,
    event: &'static str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) locks: Vec<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<Token>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) session: Option<SessionId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) label: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    how: Option<&'static str>,
    #[serde(flatten)]
    more: Option<More<'a>>,
}

/// What only some events have.
#[derive(Serialize)]
#[serde(untagged)]
enum More<'a> {
    Force { by: &'a str, reason: &'a str, moved_to: Token },
    Refused { why: String },
    Delay { delay_ms: u64 },
    Published { value: Published<'a> },
    Permits { permits: u32 },
}

impl<'a> Happening<'a> {
    fn new(event: &'static str) -> Happening<'a> {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Happening {
            schema: SCHEMA,
            at_unix_ms: u64::try_from(since.as_millis()).unwrap_or(u64::MAX),
            event,
            locks: Vec::new(),
            token: None,
            session: None,
            label: None,
            how: None,
            more: None,
        }
    }

    /// Events were lost on the way.
    pub(super) fn missed() -> Happening<'a> {
        Happening::new("missed")
    }

    /// `None` for an event that is not about a lock.
    pub(super) fn from_event(event: &'a Event) -> Option<Happening<'a>> {
        let happening = match event {
            Event::Queued { session, locks, .. } => Happening::new("queued").at(locks).by(*session),
            Event::LeftQueue { session, locks, why, .. } => {
                Happening::new("left-queue").at(locks).by(*session).left(why)
            }
            Event::Granted { locks, session, token, .. } => {
                Happening::new("granted").at(locks).by(*session).with(*token)
            }
            Event::GrantEnded { locks, session, token, how } => {
                Happening::new("ended").at(locks).by(*session).with(*token).ended(how)
            }
            Event::Withheld { locks, token, delay } => Happening {
                more: Some(More::Delay { delay_ms: delay.as_ms() }),
                ..Happening::new("withheld").at(locks).with(*token)
            },
            Event::DelayEnded { locks, token, force } => Happening {
                more: force.as_ref().map(|force| More::Force {
                    by: force.by.as_str(),
                    reason: force.reason.as_str(),
                    moved_to: force.moved_to,
                }),
                ..Happening::new("delay-ended").at(locks).with(*token)
            },
            Event::Published { lock, token, value } => Happening {
                more: Some(More::Published { value: value.into() }),
                ..Happening::new("published").at([lock]).with(*token)
            },
            Event::Resized { lock, limit } => {
                Happening { more: Some(More::Permits { permits: *limit }), ..Happening::new("resized").at([lock]) }
            }
            Event::SessionOpened { .. }
            | Event::SessionEnded { .. }
            | Event::TokensRaised { .. }
            | Event::Configured { .. } => return None,
        };
        Some(happening)
    }
}

/// One thing more that is known.
impl<'a> Happening<'a> {
    fn at(self, locks: impl IntoIterator<Item = &'a LockName>) -> Happening<'a> {
        Happening { locks: locks.into_iter().map(LockName::as_str).collect(), ..self }
    }

    fn by(self, session: SessionId) -> Happening<'a> {
        Happening { session: Some(session), ..self }
    }

    fn with(self, token: Token) -> Happening<'a> {
        Happening { token: Some(token), ..self }
    }

    fn ended(self, how: &'a Ending) -> Happening<'a> {
        let (how, more) = match how {
            Ending::Released => ("released", None),
            Ending::SessionEnded(how) => (session_end(*how), None),
            Ending::Forced(force) => {
                let (by, reason) = (force.by.as_str(), force.reason.as_str());
                ("forced", Some(More::Force { by, reason, moved_to: force.moved_to }))
            }
        };
        Happening { how: Some(how), more, ..self }
    }

    fn left(self, why: &Departure) -> Happening<'a> {
        let (how, more) = match why {
            Departure::Cancelled => ("cancelled", None),
            Departure::SessionEnded(how) => (session_end(*how), None),
            Departure::Refused(refusal) => ("refused", Some(More::Refused { why: refusal.to_string() })),
        };
        Happening { how: Some(how), more, ..self }
    }
}

fn session_end(how: SessionEnd) -> &'static str {
    match how {
        SessionEnd::Closed => "closed",
        SessionEnd::Expired => "expired",
    }
}

/// On paper.
impl Happening<'_> {
    pub(super) fn as_json(&self) -> io::Result<String> {
        Ok(serde_json::to_string(self)?)
    }

    /// The time of day, what happened, where, with which token, to whom, and what else is known.
    pub(super) fn as_text(&self) -> String {
        let dim = Style::new().dimmed();
        let style = self.style();
        let mut line = format!("{dim}{}{dim:#}  {style}{:<11}{style:#}", self.time_of_day(), self.word());
        if self.event == "missed" {
            line.push_str("  some events: this watch was too slow; see `palisade ls`");
            return line;
        }
        line.push_str(&format!("  {:<16}", self.locks.join(", ")));
        let token = self.token.map(|token| format!("token {token}"));
        let who = match (&self.label, self.session) {
            (Some(label), _) => Some(text::plain(label)),
            (None, session) => session.map(|session| format!("session {session}")),
        };
        for part in [token, who, self.more()].into_iter().flatten() {
            line.push_str("  ");
            line.push_str(&part);
        }
        line
    }

    fn word(&self) -> &'static str {
        match (self.event, self.how) {
            ("ended", Some(how)) => how,
            (event, _) => event,
        }
    }

    fn style(&self) -> Style {
        match self.word() {
            "granted" => AnsiColor::Green.on_default(),
            "queued" => AnsiColor::Cyan.on_default(),
            "expired" | "forced" | "withheld" | "missed" => AnsiColor::Red.on_default(),
            _ => Style::new(),
        }
    }

    /// In UTC: which time zone a person lives in is not worth a dependency.
    fn time_of_day(&self) -> String {
        let at = UNIX_EPOCH + Duration::from_millis(self.at_unix_ms);
        let full = humantime::format_rfc3339_seconds(at).to_string();
        full.split_once('T').map_or(full.clone(), |(_, time)| time.to_owned())
    }

    fn more(&self) -> Option<String> {
        let more = match &self.more {
            None if self.event == "left-queue" => format!("({})", self.how?),
            None => return None,
            Some(More::Force { by, reason, moved_to }) => {
                format!("by {}: {} (the token moved on to {moved_to})", text::plain(by), text::plain(reason))
            }
            Some(More::Refused { why }) => format!("({})", text::plain(why)),
            Some(More::Delay { delay_ms }) => format!("for {}", text::time_ms(*delay_ms)),
            Some(More::Published { value }) => value.to_string(),
            Some(More::Permits { permits }) => format!("to {permits} permits"),
        };
        Some(more)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_missed_is_said_plainly() {
        let missed = Happening { at_unix_ms: 0, ..Happening::missed() };
        assert_eq!(missed.as_json().unwrap(), r#"{"schema":1,"at_unix_ms":0,"event":"missed"}"#);
        let text = anstream::adapter::strip_str(&missed.as_text()).to_string();
        assert_eq!(text, "00:00:00Z  missed       some events: this watch was too slow; see `palisade ls`");
    }
}
