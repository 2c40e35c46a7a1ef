//! How a client connects.

use std::time::Duration;

use crate::engine::{Engine, Failure};
use crate::{Error, Palisade};

/// How a client connects: how long its session lives, and what people call it.
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
    /// How long a session lives that is not kept alive, unless [`Options::ttl`] says otherwise: long enough to forgive a short
    /// outage.
    pub const TTL: Duration = Duration::from_secs(30);

    /// A TTL of 30 s, a label made of program, host and process, a drift of 1%.
    ///
    /// ```
    /// use palisade::Options;
    /// let options = Options::new();
    /// ```
    pub fn new() -> Options {
        Options::default()
    }

    /// How long the session lives when it is not kept alive. A shorter TTL frees the locks of a client that is gone
    /// sooner; a longer one forgives longer pauses. The session is renewed after a third of it.
    ///
    /// ```
    /// use palisade::Options;
    /// use std::time::Duration;
    /// let options = Options::new().ttl(Duration::from_secs(30));
    /// ```
    pub fn ttl(self, ttl: Duration) -> Options {
        Options { ttl, ..self }
    }

    /// What people call this client.
    ///
    /// ```
    /// use palisade::Options;
    /// let options = Options::new().label("billing");
    /// ```
    pub fn label(self, label: impl Into<String>) -> Options {
        Options { label: label.into(), ..self }
    }

    /// By how many thousandths the engine's clock may run faster than ours. So much of the TTL is given away.
    ///
    /// ```
    /// use palisade::Options;
    /// let options = Options::new().drift_per_mille(50);
    /// ```
    pub fn drift_per_mille(self, drift: u32) -> Options {
        Options { drift_per_mille: drift, ..self }
    }

    /// Opens no session: such a client sees everything and holds nothing. It leaves no trace at the engine.
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
    /// A URL that leads to no engine, an engine that cannot be reached, a TTL that the engine does not accept.
    pub async fn connect(self, url: &str) -> Result<Palisade, Error> {
        Palisade::connect(url, self).await
    }

    /// Connects to an engine of one's own, and opens a session. `connect` makes the engine on the keeper's thread,
    /// where it then stays; `name` is what errors call it until it says so itself.
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
    /// What `connect` fails with; a TTL that the engine does not accept.
    pub async fn connect_engine<E: Engine>(
        self,
        name: &'static str,
        connect: impl AsyncFnOnce() -> Result<E, Failure> + Send + 'static,
    ) -> Result<Palisade, Error> {
        Palisade::connect_engine(name, self, connect).await
    }
}

/// `program on host (pid 4711)`, as far as the system tells.
fn default_label() -> String {
    let program = std::env::current_exe().ok();
    let program = program.as_ref().and_then(|path| path.file_name()).map(|name| name.to_string_lossy());
    let host = rustix::system::uname();
    let host = host.nodename().to_string_lossy();
    format!("{} on {host} (pid {})", program.as_deref().unwrap_or("?"), std::process::id())
}
