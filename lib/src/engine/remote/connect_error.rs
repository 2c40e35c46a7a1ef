//! Why a connection could not be opened, or broke.

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::engine::{Failure, Unavailable};

const UNREACHABLE: &str = "cannot be reached: ";

/// The name and address of a store, for messages. The address is empty if the message has it already.
#[derive(Debug, Clone)]
pub struct Peer {
    name: &'static str,
    address: String,
}

impl Peer {
    pub(crate) fn new(name: &'static str, address: String) -> Peer {
        Peer { name, address }
    }

    /// The failure of a call whose reply this build cannot interpret.
    pub(crate) fn unexpected(&self, what: impl fmt::Display) -> Failure {
        let what = format!("{self}: {what}, which this build does not understand");
        Unavailable::new(what).permanent().into()
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.address.as_str() {
            "" => f.write_str(self.name),
            address => write!(f, "{} at {address}", self.name),
        }
    }
}

/// Why a connection could not be opened, or broke. Every caller that needed the connection gets a copy.
#[derive(Debug, Clone)]
pub struct ConnectError {
    peer: Option<Peer>,
    what: String,
    /// A question or an advice that follows.
    advice: Option<&'static str>,
    severity: Severity,
    #[cfg_attr(not(any(feature = "etcd", feature = "service")), allow(dead_code, reason = "only these look at it"))]
    symptom: Symptom,
    cause: Option<Arc<dyn Cause>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Symptom {
    /// No connection could be opened.
    Unreachable,
    /// A connection was opened, and a request was not answered in time.
    Silent,
    /// A node of a cluster answers, and knows no leader.
    #[cfg(feature = "service")]
    Leaderless,
    Other,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Severity {
    Transient,
    Redirected,
    Permanent,
    Denied,
}

/// An error of which each caller gets its own copy, to downcast.
trait Cause: fmt::Debug + Send + Sync {
    fn to_boxed(&self) -> Box<dyn Error + Send + Sync>;
}

impl<E: Error + Clone + Send + Sync + 'static> Cause for E {
    fn to_boxed(&self) -> Box<dyn Error + Send + Sync> {
        Box::new(self.clone())
    }
}

impl ConnectError {
    /// A problem that may pass without a change by the operator.
    pub(crate) fn transient(what: impl Into<String>) -> ConnectError {
        let (severity, symptom) = (Severity::Transient, Symptom::Other);
        ConnectError { peer: None, what: what.into(), advice: None, severity, symptom, cause: None }
    }

    /// A problem that stays until the operator changes something.
    pub(crate) fn permanent(what: impl Into<String>) -> ConnectError {
        ConnectError { severity: Severity::Permanent, ..ConnectError::transient(what) }
    }

    /// The store rejects this client's credentials or rights.
    pub(crate) fn denied(what: impl Into<String>) -> ConnectError {
        ConnectError { severity: Severity::Denied, ..ConnectError::transient(what) }
    }

    /// The store named another server to connect to. Callers wait for the next attempt, which begins at once.
    pub(crate) fn redirected(what: impl Into<String>) -> ConnectError {
        ConnectError { severity: Severity::Redirected, ..ConnectError::transient(what) }
    }

    /// The store did not answer in time.
    pub(crate) fn no_answer(waited: Duration) -> ConnectError {
        let what = format!("does not answer; waited {} ms", waited.as_millis());
        ConnectError { symptom: Symptom::Silent, ..ConnectError::transient(what) }
    }

    /// No connection could be opened. `error` is the system's, or one with it as its cause.
    pub(crate) fn unreachable(error: &(dyn Error + 'static)) -> ConnectError {
        // The last cause says most.
        let mut last = error;
        while let Some(cause) = last.source() {
            last = cause;
        }
        let text = printable(&last.to_string());
        let (why, question) = match text.strip_prefix("failed to lookup address information: ") {
            Some(why) if why.contains("Temporary") => {
                (format!("its name could not be looked up ({why})"), "Is the address right?")
            }
            Some(why) => (format!("its name is unknown ({why})"), "Is the address right?"),
            None => (text, "Is it running, and is the address right?"),
        };
        let error = ConnectError::transient(format!("{UNREACHABLE}{why}")).advising(question);
        ConnectError { symptom: Symptom::Unreachable, ..error }
    }

    /// A node of a cluster answers, and knows no leader.
    #[cfg(feature = "service")]
    pub(crate) fn leaderless() -> ConnectError {
        let what = "this node answers, and knows no leader: a majority of the nodes is needed";
        let error = ConnectError::transient(what).advising("See `palisade cluster status`");
        ConnectError { symptom: Symptom::Leaderless, ..error }
    }

    pub(crate) fn closed() -> ConnectError {
        ConnectError::transient("the connection was closed")
    }

    /// Names the store, unless it is named already.
    pub(crate) fn at(mut self, peer: &Peer) -> ConnectError {
        self.peer.get_or_insert_with(|| peer.clone());
        self
    }

    /// Leaves out the store's name.
    #[cfg(feature = "service")]
    pub(crate) fn unnamed(self) -> ConnectError {
        ConnectError { peer: None, ..self }
    }

    /// Adds the error that callers can downcast to.
    pub(crate) fn because(self, cause: impl Error + Clone + Send + Sync + 'static) -> ConnectError {
        ConnectError { cause: Some(Arc::new(cause)), ..self }
    }

    /// Adds a question or an advice. [`reason`](ConnectError::reason) leaves it out.
    pub(crate) fn advising(self, advice: &'static str) -> ConnectError {
        ConnectError { advice: Some(advice), ..self }
    }

    /// Adds a sentence.
    #[cfg(feature = "etcd")]
    pub(crate) fn adding(self, sentence: &str) -> ConnectError {
        let what = self.text();
        let end = if what.ends_with(['.', '?']) { "" } else { "." };
        ConnectError { what: format!("{what}{end} {sentence}"), advice: None, ..self }
    }

    /// Returns the reason in a few words, for a list of servers.
    #[cfg(feature = "service")]
    pub(crate) fn reason(&self) -> &str {
        self.what.strip_prefix(UNREACHABLE).unwrap_or(&self.what)
    }

    fn text(&self) -> String {
        match self.advice {
            Some(advice) => format!("{}. {advice}", self.what),
            None => self.what.clone(),
        }
    }

    /// Whether a node of a cluster answers, and knows no leader.
    #[cfg(feature = "service")]
    pub(crate) fn is_leaderless(&self) -> bool {
        self.symptom == Symptom::Leaderless
    }

    /// Whether no connection could be opened.
    #[cfg(any(feature = "etcd", feature = "service"))]
    pub(crate) fn is_unreachable(&self) -> bool {
        self.symptom == Symptom::Unreachable
    }

    /// Whether a request was not answered in time.
    #[cfg(any(feature = "etcd", feature = "service"))]
    pub(crate) fn is_silent(&self) -> bool {
        self.symptom == Symptom::Silent
    }

    /// Whether the operator has to change something before a connection can succeed.
    pub(crate) fn is_permanent(&self) -> bool {
        matches!(self.severity, Severity::Permanent | Severity::Denied)
    }

    pub(crate) fn is_redirect(&self) -> bool {
        self.severity == Severity::Redirected
    }

    /// The failure of a call that needed the connection.
    pub(crate) fn failure(&self, may_have_taken_effect: bool) -> Failure {
        if self.severity == Severity::Denied {
            return Failure::Denied(self.to_string());
        }
        Failure::Unavailable(Unavailable {
            what: self.to_string(),
            may_have_taken_effect,
            is_retryable: !self.is_permanent(),
            source: self.cause.as_ref().map(|cause| cause.to_boxed()),
            if_undone: None,
        })
    }
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.peer {
            Some(peer) => write!(f, "{peer}: {}", self.text()),
            None => f.write_str(&self.text()),
        }
    }
}

/// Escapes text of a store for a terminal.
pub(crate) fn printable(text: &str) -> String {
    text.escape_debug().to_string().replace("\\'", "'").replace("\\\"", "\"")
}
