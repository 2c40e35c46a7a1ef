//! Elections: one client leads, and all clients can see which one.

use std::sync::Arc;
use std::time::Duration;

use palisade_core::{Event, LockName, Mode, Token, Value};

use crate::client::parse_name;
use crate::engine::Watched;
use crate::guard::Leadership;
use crate::keeper::{Link, Op};
use crate::{Error, Request, Watch, error};

/// An election.
#[derive(Clone)]
#[must_use = "an election does nothing until a method is called"]
pub struct Election {
    link: Arc<Link>,
    name: String,
}

/// The leader.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leader {
    /// The value that the leader publishes.
    pub value: Vec<u8>,
    /// The token of its leadership.
    pub token: Token,
    /// The label of its session. Not escaped: escape it before printing.
    pub label: String,
}

impl Election {
    pub(crate) fn new(link: Arc<Link>, name: String) -> Election {
        Election { link, name }
    }

    /// Waits to be elected. The value is published together with the election.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), palisade::Error> {
    /// let palisade = palisade::connect("memory:").await?;
    /// let leadership = palisade.election("scheduler").campaign("10.0.0.7:8080").await?;
    /// leadership.release().await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Cancellation
    ///
    /// Dropping the future ends the candidacy.
    ///
    /// # Errors
    ///
    /// As [`Request::acquire`].
    pub async fn campaign(self, value: impl AsRef<[u8]>) -> Result<Leadership, Error> {
        self.candidacy(value).acquire().await
    }

    /// Waits at most this long to be elected; `None` if it was not elected.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), palisade::Error> {
    /// let palisade = palisade::connect("memory:").await?;
    /// use std::time::Duration;
    /// let leads = palisade.election("scheduler").campaign("a").await?;
    /// let waits = palisade.election("scheduler").campaign_within("b", Duration::from_millis(1)).await?;
    /// assert!(waits.is_none());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`Request::acquire_within`].
    pub async fn campaign_within(
        &self,
        value: impl AsRef<[u8]>,
        wait: Duration,
    ) -> Result<Option<Leadership>, Error> {
        self.candidacy(value).acquire_within(wait).await
    }

    /// Returns the request that [`campaign`](Election::campaign) sends: for a `try_acquire`, a lock-delay, or to
    /// [seal](Request::seal) the resources of the leader.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), palisade::Error> {
    /// let palisade = palisade::connect("memory:").await?;
    /// let leads = palisade.election("scheduler").candidacy("a").try_acquire().await?;
    /// assert!(leads.is_some());
    /// # Ok(()) }
    /// # async fn sealed(palisade: palisade::Palisade, plan: impl palisade::Seal + Sync) -> Result<(), palisade::Error> {
    /// let (leadership, plan) = palisade.election("scheduler").candidacy("10.0.0.7").seal(&plan).acquire().await?;
    /// # Ok(()) }
    /// ```
    pub fn candidacy(&self, value: impl AsRef<[u8]>) -> Request<Leadership> {
        let mut request = Request::with(self.link.clone(), vec![(self.name.clone(), Mode::Exclusive)]);
        request.value = Some(Value::new(value.as_ref()));
        request
    }

    /// Returns the current leader.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), palisade::Error> {
    /// let palisade = palisade::connect("memory:").await?;
    /// assert_eq!(palisade.election("scheduler").leader().await?, None);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// An invalid name, an engine that does not answer.
    pub async fn leader(self) -> Result<Option<Leader>, Error> {
        leader(&self.link, parse_name(&self.link, &self.name, "observe")?).await
    }

    /// Watches for changes of the leader.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), palisade::Error> {
    /// let palisade = palisade::connect("memory:").await?;
    /// let mut observer = palisade.election("scheduler").observe().await?;
    /// assert_eq!(observer.next().await?, None);
    /// let leadership = palisade.election("scheduler").campaign("me").await?;
    /// assert_eq!(observer.next().await?.expect("a leader").value, b"me");
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// An engine that cannot be watched, or does not answer.
    pub async fn observe(self) -> Result<Observer, Error> {
        const OPERATION: &str = "observe";
        if !self.link.guarantees.offers.watch {
            let kind = error::not_offered("way to watch");
            return Err(Error::new(kind, self.link.guarantees.engine, OPERATION).on(&self.name));
        }
        let lock = parse_name(&self.link, &self.name, OPERATION)?;
        let watch = self.link.call(|reply| Op::Watch(self.name.clone(), reply)).await?;
        Ok(Observer { link: self.link.clone(), lock, watch, is_stale: true, last: None })
    }
}

async fn leader(link: &Link, lock: LockName) -> Result<Option<Leader>, Error> {
    let info = link.call(|reply| Op::Inspect(lock, reply)).await?;
    Ok(info.and_then(|info| {
        let holder = info.holders.into_iter().next()?;
        let value = info.value?.as_bytes().to_vec();
        Some(Leader { value, token: holder.token, label: holder.label.unwrap_or_default() })
    }))
}

/// A watch of an election's leader.
pub struct Observer {
    link: Arc<Link>,
    lock: LockName,
    watch: Watch,
    /// Whether the leader may have changed since it was last fetched.
    is_stale: bool,
    /// The last result of `next`; `None` before the first.
    last: Option<Option<Leader>>,
}

impl Observer {
    /// Returns the leader. The first call returns at once, later calls wait for a change. Several changes between two calls
    /// are reported as one.
    ///
    /// # Cancellation
    ///
    /// No change is lost; call it again.
    ///
    /// # Errors
    ///
    /// An engine that does not answer.
    pub async fn next(&mut self) -> Result<Option<Leader>, Error> {
        loop {
            if !self.is_stale {
                self.changed().await;
                self.is_stale = true;
            }
            let now = leader(&self.link, self.lock.clone()).await?;
            self.is_stale = false;
            if self.last.as_ref() != Some(&now) {
                self.last = Some(now.clone());
                return Ok(now);
            }
        }
    }

    /// Waits for an event that may have changed the leader, or for the end of the watch.
    async fn changed(&mut self) {
        while let Some(watched) = self.watch.next().await {
            match watched {
                Watched::Missed | Watched::Event(Event::Published { .. } | Event::GrantEnded { .. }) => return,
                Watched::Event(_) => {}
            }
        }
        // The watch has ended with the client. The next call to the keeper fails for that reason.
    }
}
