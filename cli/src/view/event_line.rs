//! One event as one line, as text or as JSON.

use std::io;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::builder::styling::{AnsiColor, Style};
use palisade::{Departure, Ending, Event, LockName, SessionEnd, SessionId, Token};
use serde::Serialize;

use super::report::{Published, SCHEMA};
use crate::text;

/// An event with its details.
#[derive(Serialize)]
pub(super) struct EventLine<'a> {
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
    more: Option<Details<'a>>,
}

/// The fields that only some events have.
#[derive(Serialize)]
#[serde(untagged)]
enum Details<'a> {
    Force { by: &'a str, reason: &'a str, moved_to: Token },
    Refused { why: String },
    Delay { delay_ms: u64 },
    Published { value: Published<'a> },
    Permits { permits: u32 },
}

impl<'a> EventLine<'a> {
    fn new(event: &'static str) -> EventLine<'a> {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        EventLine {
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

    /// Returns the line that says that events were missed.
    pub(super) fn missed() -> EventLine<'a> {
        EventLine::new("missed")
    }

    /// Describes an event; `None` if it is not about a lock.
    pub(super) fn from_event(event: &'a Event) -> Option<EventLine<'a>> {
        let line = match event {
            Event::Queued { session, locks, .. } => EventLine::new("queued").at(locks).by(*session),
            Event::LeftQueue { session, locks, why, .. } => {
                EventLine::new("left-queue").at(locks).by(*session).left(why)
            }
            Event::Granted { locks, session, token, .. } => {
                EventLine::new("granted").at(locks).by(*session).with(*token)
            }
            Event::GrantEnded { locks, session, token, how } => {
                EventLine::new("ended").at(locks).by(*session).with(*token).ended(how)
            }
            Event::Withheld { locks, token, delay } => EventLine {
                more: Some(Details::Delay { delay_ms: delay.as_ms() }),
                ..EventLine::new("withheld").at(locks).with(*token)
            },
            Event::DelayEnded { locks, token, force } => EventLine {
                more: force.as_ref().map(|force| Details::Force {
                    by: force.by.as_str(),
                    reason: force.reason.as_str(),
                    moved_to: force.moved_to,
                }),
                ..EventLine::new("delay-ended").at(locks).with(*token)
            },
            Event::Published { lock, token, value } => EventLine {
                more: Some(Details::Published { value: value.into() }),
                ..EventLine::new("published").at([lock]).with(*token)
            },
            Event::Resized { lock, limit } => {
                EventLine { more: Some(Details::Permits { permits: *limit }), ..EventLine::new("resized").at([lock]) }
            }
            Event::SessionOpened { .. }
            | Event::SessionEnded { .. }
            | Event::TokensRaised { .. }
            | Event::Configured { .. }
            | Event::TtlChanged { .. } => return None,
        };
        Some(line)
    }
}

/// Builder methods.
impl<'a> EventLine<'a> {
    fn at(self, locks: impl IntoIterator<Item = &'a LockName>) -> EventLine<'a> {
        EventLine { locks: locks.into_iter().map(LockName::as_str).collect(), ..self }
    }

    fn by(self, session: SessionId) -> EventLine<'a> {
        EventLine { session: Some(session), ..self }
    }

    fn with(self, token: Token) -> EventLine<'a> {
        EventLine { token: Some(token), ..self }
    }

    fn ended(self, how: &'a Ending) -> EventLine<'a> {
        let (how, more) = match how {
            Ending::Released => ("released", None),
            Ending::SessionEnded(how) => (session_end(*how), None),
            Ending::Forced(force) => {
                let (by, reason) = (force.by.as_str(), force.reason.as_str());
                ("forced", Some(Details::Force { by, reason, moved_to: force.moved_to }))
            }
        };
        EventLine { how: Some(how), more, ..self }
    }

    fn left(self, why: &Departure) -> EventLine<'a> {
        let (how, more) = match why {
            Departure::Cancelled => ("cancelled", None),
            Departure::SessionEnded(how) => (session_end(*how), None),
            Departure::Refused(refusal) => ("refused", Some(Details::Refused { why: refusal.to_string() })),
        };
        EventLine { how: Some(how), more, ..self }
    }
}

fn session_end(how: SessionEnd) -> &'static str {
    match how {
        SessionEnd::Closed => "closed",
        SessionEnd::Expired => "expired",
    }
}

/// Output.
impl EventLine<'_> {
    pub(super) fn as_json(&self) -> io::Result<String> {
        Ok(serde_json::to_string(self)?)
    }

    /// Returns time, event, locks, token, session and details.
    pub(super) fn as_text(&self) -> String {
        let dim = Style::new().dimmed();
        let style = self.style();
        let mut line = format!("{dim}{}{dim:#}  {style}{:<11}{style:#}", self.time_of_day(), self.word());
        if self.event == "missed" {
            line.push_str(
                "  events may be missing: the connection broke, or this watch was too slow; see `palisade ls`",
            );
            return line;
        }
        line.push_str(&format!("  {:<16}", self.locks.join(", ")));
        let token = self.token.map(|token| format!("token {token}"));
        let session = match (&self.label, self.session) {
            (Some(label), _) => Some(text::plain(label)),
            (None, session) => session.map(|session| format!("session {session}")),
        };
        for part in [token, session, self.more()].into_iter().flatten() {
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

    /// Returns the time of day in UTC, since a local time zone would need another dependency.
    fn time_of_day(&self) -> String {
        let at = UNIX_EPOCH + Duration::from_millis(self.at_unix_ms);
        let full = humantime::format_rfc3339_seconds(at).to_string();
        full.split_once('T').map_or(full.clone(), |(_, time)| time.to_owned())
    }

    fn more(&self) -> Option<String> {
        let more = match &self.more {
            None if self.event == "left-queue" => format!("({})", self.how?),
            None => return None,
            Some(Details::Force { by, reason, moved_to }) => {
                format!("by {}: {} (the token moved on to {moved_to})", text::plain(by), text::plain(reason))
            }
            Some(Details::Refused { why }) => format!("({})", text::plain(why)),
            Some(Details::Delay { delay_ms }) => format!("for {}", text::time_ms(*delay_ms)),
            Some(Details::Published { value }) => value.to_string(),
            Some(Details::Permits { permits }) => format!("to {permits} permits"),
        };
        Some(more)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missed_events_are_reported() {
        let missed = EventLine { at_unix_ms: 0, ..EventLine::missed() };
        assert_eq!(missed.as_json().unwrap(), r#"{"schema":1,"at_unix_ms":0,"event":"missed"}"#);
        let text = anstream::adapter::strip_str(&missed.as_text()).to_string();
        assert_eq!(
            text,
            "00:00:00Z  missed       events may be missing: the connection broke, or this watch was too slow; see `palisade ls`"
        );
    }
}
