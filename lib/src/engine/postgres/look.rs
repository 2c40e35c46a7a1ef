//! A lock as `palisade.show` writes it.

use palisade_core::{LockName, Mode, SessionId, Token, Value};
use serde::Deserialize;

use super::push::{bytes, ending, label};
use crate::engine::info::in_words;
use crate::engine::{EndedInfo, HolderInfo, LockInfo, WaiterInfo};

/// What an exclusive holder takes.
pub(super) const ALL: i64 = u32::MAX as i64;

#[derive(Deserialize)]
struct Shown {
    name: LockName,
    permits: Option<u32>,
    places: Vec<Place>,
    value: Option<String>,
    history: Option<Vec<String>>,
}

#[derive(Deserialize)]
struct Place {
    state: String,
    need: i64,
    token: Option<Token>,
    session: SessionId,
    label: Option<String>,
    held_ms: Option<f64>,
    left_ms: Option<f64>,
}

/// `None` for what this build does not understand.
pub(super) fn lock(json: &str) -> Option<LockInfo> {
    let Shown { name, permits, places, value, history } = serde_json::from_str(json).ok()?;
    let mut info = LockInfo {
        name,
        limit: permits,
        holders: Vec::new(),
        waiters: Vec::new(),
        value: value.and_then(|value| Some(Value::new(&bytes(&value)?))),
        history: history.unwrap_or_default().iter().filter_map(|ended| ended_info(ended)).collect(),
    };
    for place in places {
        let mode = mode(permits, place.need)?;
        let name = place.label.as_deref().and_then(label).map(|label| label.as_str().to_owned());
        if place.state == "waiting" {
            info.waiters.push(WaiterInfo { session: place.session, label: name.unwrap_or_default(), mode });
            continue;
        }
        let is_held = place.state == "held";
        info.holders.push(HolderInfo {
            token: place.token?,
            mode,
            session: is_held.then_some(place.session),
            label: name.filter(|_| is_held),
            held_for_ms: place.held_ms.map(|ms| ms.max(0.0) as u64),
            time_left_ms: place.left_ms.map(|ms| ms.max(0.0) as u64),
        });
    }
    info.holders.sort_by_key(|holder| holder.token);
    Some(info)
}

fn mode(permits: Option<u32>, need: i64) -> Option<Mode> {
    Some(match permits {
        None if need == ALL => Mode::Exclusive,
        None => Mode::Shared,
        Some(of) => Mode::Permits { count: u32::try_from(need).ok()?, of },
    })
}

/// `TOKEN,SESSION,NEED,LABEL,HOW`.
fn ended_info(text: &str) -> Option<EndedInfo> {
    let mut words = text.splitn(5, ',');
    let token = Token::new(words.next()?.parse().ok()?).ok()?;
    let session = SessionId::new(words.next()?.parse().ok()?).ok()?;
    words.next()?;
    let label = label(words.next()?)?.as_str().to_owned();
    Some(EndedInfo { token, session, label, how: in_words(&ending(words.next()?)?) })
}
