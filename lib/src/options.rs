//! The options of a client.

use std::time::Duration;

use crate::engine::{Engine, Failure};
use crate::{Error, Palisade};

/// The options of a client: the TTL of its session, and its label.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), palisade::Error> {
/// use std::time::Duration;
/// let palisade = palisade::Options::new().ttl(Duration::from_secs(30)).label("billing").connect("memory:").await?;
/// # palisade.close().await }
/// ```
#[derive(Debug, Clone)]
pub struct Options {
    pub(crate) ttl: Duration,
    pub(crate) label: String,
    drift_per_mille: u32,
    pub(crate) is_observer: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options { ttl: Options::TTL, label: default_label(), drift_per_mille: 10, is_observer: false }
    }
}

impl Options {
    /// The default TTL of a session: long enough to survive the restart of a store.
    pub const TTL: Duration = Duration::from_secs(30);

    /// The defaults: a TTL of 30 s, a label made of program, host and process, a clock drift of 1%.
    ///
    /// ```
    /// use palisade::Options;
    /// let options = Options::new();
    /// ```
    pub fn new() -> Options {
        Options::default()
    }

    /// Sets the TTL: how long the session lives without a keep-alive. A shorter TTL frees the locks of a dead client sooner. A
    /// longer one survives longer pauses and outages. The keeper renews the session after a third of the TTL.
    ///
    /// ```
    /// use palisade::Options;
    /// use std::time::Duration;
    /// let options = Options::new().ttl(Duration::from_secs(30));
    /// ```
    pub fn ttl(self, ttl: Duration) -> Options {
        Options { ttl, ..self }
    }

    /// Sets the client's name for people, which holders and waiters are listed with.
    ///
    /// ```
    /// use palisade::Options;
    /// let options = Options::new().label("billing");
    /// ```
    pub fn label(self, label: impl Into<String>) -> Options {
        Options { label: label.into(), ..self }
    }

    /// Sets by how many thousandths the engine's clock may run faster than this host's. The client counts its lease as that
    /// much shorter than the TTL.
    ///
    /// ```
    /// use palisade::Options;
    /// let options = Options::new().drift_per_mille(50);
    /// ```
    pub fn drift_per_mille(self, drift: u32) -> Options {
        Options { drift_per_mille: drift, ..self }
    }

    /// Opens no session: the client can view and watch locks, but not acquire any. The engine stores nothing for it.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), palisade::Error> {
    /// let observer = palisade::Options::new().observer().connect("memory:").await?;
    /// assert!(observer.list("").await?.is_empty());
    /// assert!(observer.lock("orders/42").acquire().await.is_err());
    /// # Ok(()) }
    /// ```
    pub fn observer(self) -> Options {
        Options { is_observer: true, ..self }
    }

    pub(crate) fn drift(&self) -> Duration {
        self.ttl.saturating_mul(self.drift_per_mille) / 1000
    }

    /// Connects to the engine that a URL names, and opens a session.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), palisade::Error> {
    /// let palisade = palisade::Options::new().connect("memory:").await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// An invalid URL, an engine that cannot be reached, a TTL that the engine does not accept.
    pub async fn connect(self, url: &str) -> Result<Palisade, Error> {
        Palisade::connect(url, self).await
    }

    /// Connects to an engine that the application implements, and opens a session. The keeper calls `connect` on its own
    /// thread, where the engine stays. `name` is the engine's name in connection errors.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), palisade::Error> {
    /// use palisade::engine::memory::{Config, Memory};
    /// let connect = async || Ok(Memory::connect(&Config { name: None }));
    /// let palisade = palisade::Options::new().connect_engine("my engine", connect).await?;
    /// # palisade.close().await }
    /// ```
    ///
    /// # Errors
    ///
    /// The failure of `connect`; a TTL that the engine does not accept.
    pub async fn connect_engine<E: Engine>(
        self,
        name: &'static str,
        connect: impl AsyncFnOnce() -> Result<E, Failure> + Send + 'static,
    ) -> Result<Palisade, Error> {
        Palisade::connect_engine(name, self, connect).await
    }
}

/// Returns a label like `program on host (pid 4711)`.
fn default_label() -> String {
    let program = std::env::current_exe().ok();
    let program = program.as_ref().and_then(|path| path.file_name()).map(|name| name.to_string_lossy());
    let host = rustix::system::uname();
    let host = host.nodename().to_string_lossy();
    format!("{} on {host} (pid {})", program.as_deref().unwrap_or("?"), std::process::id())
}
