//! What one page gets: the board's rows as far as its user may see them.

use std::convert::Infallible;
use std::sync::Arc;

use axum::response::sse;
use futures_util::Stream;
use futures_util::stream::unfold;
use serde::Serialize;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::oneshot;

use super::board::{Board, Message, Opening, Outage, Row, RowHolder, RowWaiter, Rows, json, rows_json};
use super::lock::{Ended, Lock};
use super::moments::Moment;
use super::numbers::Sample;

/// How many rows one message has when a page begins.
const ROWS: usize = 250;

/// The reader of a page.
pub(crate) trait Reader: Send + 'static {
    /// Whether the reader may see every lock.
    fn sees_all(&self) -> bool;
    /// Whether the reader may see this lock.
    fn sees(&self, lock: &str) -> bool;
    /// Whether the page ends, because the reader's rights have changed.
    fn is_over(&self) -> bool;
}

#[derive(Serialize)]
struct Start<'a> {
    now: u64,
    board: &'a str,
    numbers: Vec<Sample>,
}

struct Page<R> {
    board: Arc<Board>,
    reader: R,
    opening: Opening,
    has_started: bool,
    /// Whether the page has all rows that there were when it began.
    is_loaded: bool,
    /// The place among the pages that get everything at once.
    place: Option<oneshot::Sender<()>>,
}

/// Returns the events of a page: everything that there is, and then what changes. It ends when the page reads too slowly.
pub(crate) fn stream<R: Reader>(
    board: &Arc<Board>,
    reader: R,
) -> impl Stream<Item = Result<sse::Event, Infallible>> + use<R> {
    let (board, opening) = (board.clone(), board.open());
    let page = Page { board, reader, opening, has_started: false, is_loaded: false, place: None };
    unfold(page, async |mut page| page.next().await.map(|event| (Ok(event), page)))
}

fn event(name: &str, data: &str) -> sse::Event {
    sse::Event::default().event(name).data(data)
}

impl<R: Reader> Page<R> {
    async fn next(&mut self) -> Option<sse::Event> {
        if !self.has_started {
            self.has_started = true;
            let numbers = std::mem::take(&mut self.opening.samples);
            let start = Start { now: self.opening.now, board: &self.board.id, numbers };
            return Some(event("start", &json(&start)));
        }
        if !self.is_loaded {
            if self.place.is_none() {
                self.place = Some(self.board.place().await);
            }
            // Other requests have their turn between two messages.
            tokio::task::yield_now().await;
            let message = self.load();
            if self.is_loaded {
                self.place = None;
            }
            return Some(message);
        }
        if let Some(text) = self.opening.outage.take() {
            return Some(event("outage", &json(&Outage { now: self.opening.now, text: &text })));
        }
        loop {
            let message = match self.opening.messages.recv().await {
                Ok(message) => message,
                // It gets everything again when it comes back.
                Err(RecvError::Lagged(_) | RecvError::Closed) => return None,
            };
            if self.reader.is_over() {
                return None;
            }
            return Some(match message {
                Message::Loaded => {
                    (self.opening, self.has_started, self.is_loaded) = (self.board.open(), false, false);
                    return Box::pin(self.next()).await;
                }
                Message::Rows(rows) => match self.rows(&rows) {
                    Some(json) => event("rows", &json),
                    None => continue,
                },
                Message::Numbers(json) => event("numbers", &json),
                Message::Outage(json) => event("outage", &json),
            });
        }
    }

    /// Returns the next of the rows that there were when the page began.
    fn load(&mut self) -> sse::Event {
        let mut rows = Vec::new();
        while rows.len() < ROWS
            && let Some(row) = self.opening.rows.pop_front()
        {
            if self.reader.sees(&row.name) {
                rows.push(row);
            }
        }
        self.is_loaded = self.opening.rows.is_empty();
        let complete = self.is_loaded && self.opening.is_complete;
        event("rows", &rows_json(self.opening.now, &rows, &[], complete))
    }

    /// Returns the rows that the reader may see; `None` if there are none.
    fn rows(&self, all: &Rows) -> Option<Arc<str>> {
        if self.reader.sees_all() {
            return Some(all.json.clone());
        }
        let rows: Vec<_> = all.rows.iter().filter(|row| self.reader.sees(&row.name)).cloned().collect();
        let gone: Vec<_> = all.gone.iter().filter(|name| self.reader.sees(name)).cloned().collect();
        let is_empty = rows.is_empty() && gone.is_empty();
        (!is_empty).then(|| rows_json(all.now, &rows, &gone, all.complete))
    }
}

/// One lock with everything that is known of it.
#[derive(Serialize)]
pub(crate) struct Details {
    now: u64,
    row: Option<Row>,
    holders: Vec<RowHolder>,
    waiters: Vec<RowWaiter>,
    history: Vec<Ended>,
    timeline: Vec<Moment>,
}

/// Returns one lock, of which the caller has read the state.
pub(crate) fn details(board: &Board, name: &str, lock: Option<Lock>) -> Details {
    let history = lock.as_ref().map(|lock| lock.history.clone()).unwrap_or_default();
    let (now, row, timeline) = board.details(lock, name);
    let holders = row.as_ref().map(|row| row.holders.clone()).unwrap_or_default();
    let waiters = row.as_ref().map(|row| row.waiters.clone()).unwrap_or_default();
    Details { now, row, holders, waiters, history, timeline }
}
