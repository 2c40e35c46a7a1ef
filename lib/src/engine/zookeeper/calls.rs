//! Calls to ZooKeeper: opening its clients, and the reads and transactions that the engine consists of.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use futures_util::future::join_all;
use palisade_core::{LockName, Token};
use tokio::net::TcpStream;
use tokio::time::timeout;
use zookeeper_client::{
    Acls, Client, CreateMode, CreateOptions, Error, MultiReadResult, MultiWriteError, MultiWriteResult, Stat,
};

use super::config::{Access, Config};
use super::error::{self, NodeError};
use super::wire::{self, ClaimData, ClaimName, LockData, Paths};
use crate::engine::claims::{self, Entry, Position};
use crate::engine::remote::{Address, ConnectError, Peer, within};
use crate::engine::{Failure, Unavailable};

pub(super) const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// After this time without an answer the driver tries the next server. Shorter for sessions with a short timeout.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(4);
/// How long a probe of a server that the driver could not use may take.
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);
/// The timeout of sessions that have no nodes.
const BASE_TIMEOUT: Duration = Duration::from_secs(10);
/// How many addresses the driver is given, each more than once. It doubles its pause after each round through them: with a short
/// list it would find a server that is back only after most sessions have expired.
const ADDRESSES: usize = 20;
/// How many parents of claims the client remembers to exist.
const REMEMBERED_PARENTS: usize = 10_000;
/// How many locks one read describes.
const LOCKS_PER_READ: usize = 100;
/// The most bytes of a request that reads nodes. A server closes the connection after one of 1 MiB (`jute.maxbuffer`).
const BYTES_PER_REQUEST: usize = 256 << 10;
/// What such a request contains for each node besides its path.
const BYTES_PER_READ: usize = 16;
/// The most nodes that one request reads, which bounds the answer.
const NODES_PER_REQUEST: usize = 2000;

/// One namespace in ZooKeeper.
pub(super) struct Store {
    pub(super) peer: Peer,
    pub(super) config: Config,
    pub(super) paths: Paths,
    offset: Cell<Offset>,
    /// Parents of claims that exist, unless the server has removed them since.
    parents: RefCell<HashMap<String, Contention>>,
    /// A client without nodes, open while there is no session.
    base: RefCell<Option<Rc<Client>>>,
}

/// What the last acquire has found at a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Contention {
    Free,
    Contended,
}

/// The number that is added to every new token, and the version of its node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Offset {
    pub(super) number: u64,
    pub(super) version: i32,
}

/// A claim in the list of a lock.
#[derive(Debug, Clone)]
pub(super) struct Claim {
    pub(super) name: ClaimName,
    pub(super) node: String,
    pub(super) data: ClaimData,
    pub(super) token: Token,
    pub(super) is_granted: bool,
}

/// A lock with all its claims, oldest first.
#[derive(Debug, Clone, Default)]
pub(super) struct LockState {
    pub(super) data: LockData,
    pub(super) claims: Vec<Claim>,
}

/// The claims of a lock, oldest first, without their contents.
pub(super) struct ClaimList {
    pub(super) data: LockData,
    pub(super) claims: Vec<(ClaimName, String)>,
}

/// The contents of a claim's node; `None` if there is no such node.
type NodeContents = Option<(ClaimData, Stat)>;

/// Tries a TCP connection to a server that the driver could not use, and returns why it could not.
async fn probe(server: &Address) -> String {
    match timeout(PROBE_TIMEOUT, TcpStream::connect((server.host.as_str(), server.port))).await {
        Ok(Ok(_)) => {
            "accepts connections, and does not serve: no majority of the servers is up, it hangs, or it is no \
                      ZooKeeper"
                .to_owned()
        }
        Ok(Err(error)) => ConnectError::unreachable(&error).to_string(),
        Err(_) => format!("cannot be reached: no answer within {PROBE_TIMEOUT:?}. Is the address right?"),
    }
}

impl Store {
    pub(super) fn new(peer: Peer, config: Config) -> Store {
        let paths = Paths { root: config.root.clone() };
        let (offset, parents, base) = (Cell::default(), RefCell::default(), RefCell::default());
        Store { peer, config, paths, offset, parents, base }
    }

    pub(super) fn options(&self, mode: CreateMode) -> CreateOptions<'static> {
        mode.with_acls(match self.config.access {
            Access::Own => Acls::creator_all(),
            Access::Open => Acls::anyone_all(),
        })
    }

    /// Opens a client, which is one session of ZooKeeper.
    pub(super) async fn dial(&self, session_timeout: Duration) -> Result<Client, ConnectError> {
        let mut connector = Client::connector()
            .with_session_timeout(session_timeout)
            .with_connection_timeout(CONNECTION_TIMEOUT)
            .with_fail_eagerly();
        if let Some(login) = &self.config.login {
            let secret = login.secret.reveal().map_err(|error| ConnectError::permanent(error.to_string()))?;
            connector = connector.with_auth("digest", format!("{}:{secret}", login.user).as_bytes());
        }
        // Boxed: the driver's future is so large that the calls that contain it overflow the keeper's stack in debug builds.
        let cluster = self.config.cluster();
        let addresses = vec![cluster.as_str(); ADDRESSES.div_ceil(self.config.servers.len())].join(",");
        match timeout(CALL_TIMEOUT, Box::pin(connector.connect(&addresses))).await {
            Ok(Ok(client)) => Ok(client),
            Ok(Err(Error::NoHosts | Error::Timeout | Error::ConnectionLoss)) | Err(_) => Err(self.unusable().await),
            Ok(Err(error)) => Err(error::connect_error(error)),
        }
    }

    /// Tries a TCP connection to each server, and returns why they cannot be used. The driver does not say.
    async fn unusable(&self) -> ConnectError {
        let servers = &self.config.servers;
        let reasons = join_all(servers.iter().map(probe)).await;
        let reasons = match reasons.as_slice() {
            [only] => only.clone(),
            _ => {
                // One question for all of them follows.
                let first = |reason: &str| reason.split(". ").next().unwrap_or_default().to_owned();
                let named =
                    servers.iter().zip(&reasons).map(|(server, reason)| format!("{server} {}", first(reason)));
                let named = named.collect::<Vec<_>>().join("; ");
                format!("{named}. Are they running, and are the addresses right?")
            }
        };
        ConnectError::transient(reasons)
    }

    /// Opens the first client, and creates the nodes of the namespace if they are missing.
    pub(super) async fn prepare(&self) -> Result<(), ConnectError> {
        let client = self.dial(BASE_TIMEOUT).await?;
        within(CALL_TIMEOUT, async { self.create_namespace(&client).await.map_err(error::connect_error) }).await?;
        self.base.replace(Some(Rc::new(client)));
        Ok(())
    }

    async fn create_namespace(&self, client: &Client) -> Result<(), Error> {
        match self.load_offset(client).await {
            Err(Error::NoNode) => {}
            Ok(()) => return self.create_folders(client).await,
            Err(error) => return Err(error),
        }
        if client.list_children(&self.paths.locks()).await.is_ok_and(|locks| !locks.is_empty()) {
            return Err(Error::BadArguments(
                &"the node 'offset' was deleted, and locks are in use. If tokens were never raised, create it again: \
                  zkCli.sh create PATH/offset 0. If they were, write the number by which they were raised in place of the 0, \
                  or a higher one",
            ));
        }
        self.create_folders(client).await?;
        match client.create(&self.paths.offset(), b"0", &self.options(CreateMode::Persistent)).await {
            Ok(_) | Err(Error::NodeExists) => self.load_offset(client).await,
            Err(error) => Err(error),
        }
    }

    /// Creates the folders that are missing. An operator may have deleted one of them.
    async fn create_folders(&self, client: &Client) -> Result<(), Error> {
        for path in [self.paths.root.clone(), self.paths.locks(), self.paths.sessions(), self.paths.forced()] {
            // A user who may only read finds them.
            if client.check_stat(&path).await?.is_none() {
                client.mkdir(&path, &self.options(CreateMode::Persistent)).await?;
            }
        }
        Ok(())
    }

    pub(super) async fn load_offset(&self, client: &Client) -> Result<(), Error> {
        let (data, stat) = client.get_data(&self.paths.offset()).await?;
        let number = std::str::from_utf8(&data).ok().and_then(|text| text.parse().ok());
        // Without the number tokens would fall, so writing 0 is not enough.
        let number = number.ok_or(Error::BadArguments(
            &"the node 'offset' contains no number. Put the number back that `palisade tokens raise` wrote (zkCli.sh set \
              PATH/offset NUMBER). If it is not known, set it to 0 and run `palisade tokens raise --above HIGHEST` before any \
              lock is used, where HIGHEST is the highest token in use",
        ))?;
        self.offset.set(Offset { number, version: stat.version });
        Ok(())
    }

    pub(super) fn offset(&self) -> Offset {
        self.offset.get()
    }

    /// Returns a client for calls that belong to no session.
    pub(super) async fn base(&self) -> Result<Rc<Client>, Failure> {
        let current = self.base.borrow().clone().filter(|client| !client.state().is_terminated());
        if let Some(client) = current {
            return Ok(client);
        }
        let dialed = self.dial(BASE_TIMEOUT).await.map_err(|error| error.at(&self.peer).failure(false))?;
        let client = Rc::new(dialed);
        self.base.replace(Some(client.clone()));
        Ok(client)
    }

    /// Closes the client for calls that belong to no session: those of a session serve as well.
    pub(super) fn close_base(&self) {
        self.base.replace(None);
    }

    /// Waits for an answer, no longer than a call may take.
    pub(super) async fn answer<T, E: From<Error>>(
        &self,
        limit: Duration,
        call: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        timeout(limit, call).await.unwrap_or_else(|_| Err(E::from(Error::Timeout)))
    }
}

// Writes.
impl Store {
    /// Sends the creation of the parents that this client has not seen. They are containers: the server removes them some time
    /// after their last child.
    pub(super) fn send_parents<'a>(
        &self,
        client: &'a Client,
        parents: &'a [String],
    ) -> impl Future<Output = Result<(), Error>> {
        let new: Vec<_> = parents.iter().filter(|path| !self.parents.borrow().contains_key(*path)).collect();
        let options = self.options(CreateMode::Container);
        async move {
            if new.is_empty() {
                return Ok(());
            }
            let paths = new.iter().flat_map(|path| [wire::lock_node(path), path.as_str()]);
            for created in join_all(paths.map(|path| client.create(path, b"", &options)).collect::<Vec<_>>()).await {
                match created {
                    // The server may remove the lock's node before it has a child. Then the transaction fails.
                    Ok(_) | Err(Error::NodeExists | Error::NoNode) => {}
                    Err(error) => return Err(error),
                }
            }
            let mut parents = self.parents.borrow_mut();
            if parents.len() > REMEMBERED_PARENTS {
                parents.clear();
            }
            parents.extend(new.into_iter().map(|path| (path.clone(), Contention::Free)));
            Ok(())
        }
    }

    pub(super) fn forget_parent(&self, path: &str) {
        self.parents.borrow_mut().remove(path);
    }

    pub(super) fn is_contended(&self, path: &str) -> bool {
        self.parents.borrow().get(path) == Some(&Contention::Contended)
    }

    pub(super) fn note_contention(&self, path: &str, found: Contention) {
        if let Some(last) = self.parents.borrow_mut().get_mut(path) {
            *last = found;
        }
    }

    /// Sends a transaction that changes nothing and fails if one of these nodes is missing. A majority confirms it, unlike a
    /// read or a `sync`, which a deposed leader may still answer.
    pub(super) fn send_check<'a>(
        client: &'a Client,
        paths: impl IntoIterator<Item = &'a str>,
    ) -> impl Future<Output = Result<Vec<MultiWriteResult>, MultiWriteError>> + 'a {
        let mut writer = client.new_multi_writer();
        let added: Result<Vec<()>, Error> =
            paths.into_iter().map(|path| writer.add_check_version(path, -1)).collect();
        let sent = writer.commit();
        async move {
            added?;
            sent.await
        }
    }
}

// Reads.
impl Store {
    /// Reads the claims below these parents.
    pub(super) fn send_read<'a>(
        client: &'a Client,
        parents: &'a [String],
    ) -> impl Future<Output = Result<Vec<ClaimList>, NodeError>> + 'a {
        let mut reader = client.new_multi_reader();
        let added: Result<(), Error> = parents.iter().try_for_each(|path| {
            reader.add_get_data(wire::lock_node(path))?;
            reader.add_get_children(path)
        });
        let sent = reader.commit();
        async move {
            added?;
            let mut results = sent.await?.into_iter();
            let mut lists = Vec::with_capacity(parents.len());
            for path in parents {
                let data = data(results.next()).map_err(NodeError::at(wire::lock_node(path)))?;
                let claims = children(results.next()).map_err(NodeError::at(path))?;
                let data = data.map(|(data, _)| LockData(data)).unwrap_or_default();
                lists.push(ClaimList { data, claims: wire::sorted(claims) });
            }
            Ok(lists)
        }
    }

    /// Reads the contents of claims, with as many requests as their paths need.
    pub(super) async fn read_claims(client: &Client, paths: &[String]) -> Result<Vec<NodeContents>, NodeError> {
        let mut nodes = Vec::with_capacity(paths.len());
        for page in pages(paths) {
            let mut reader = client.new_multi_reader();
            page.iter().try_for_each(|path| reader.add_get_data(path))?;
            for (path, result) in page.iter().zip(reader.commit().await?) {
                let contents = data(Some(result)).map_err(NodeError::at(path))?;
                nodes.push(contents.map(|(data, stat)| (wire::read(&data), stat)));
            }
        }
        Ok(nodes)
    }

    /// Reads locks with all their claims, in the order of the names. Claims that go meanwhile are left out.
    pub(super) async fn lock_states(&self, client: &Client, locks: &[LockName]) -> Result<Vec<LockState>, NodeError> {
        let mut states = Vec::with_capacity(locks.len());
        for page in locks.chunks(LOCKS_PER_READ) {
            let parents: Vec<_> = page.iter().map(|lock| self.paths.claims(lock)).collect();
            let lists = Store::send_read(client, &parents).await?;
            for (parent, list) in parents.iter().zip(lists) {
                states.push(Store::with_contents(client, parent, list).await?);
            }
        }
        Ok(states)
    }

    async fn with_contents(client: &Client, parent: &str, list: ClaimList) -> Result<LockState, NodeError> {
        let paths: Vec<_> = list.claims.iter().map(|(_, node)| format!("{parent}/{node}")).collect();
        let contents = Store::read_claims(client, &paths).await?;
        let mut state = LockState { data: list.data, claims: Vec::with_capacity(paths.len()) };
        let mut ahead: Vec<Entry> = Vec::with_capacity(paths.len());
        for ((name, node), contents) in list.claims.into_iter().zip(contents) {
            let Some((data, stat)) = contents else { continue };
            let Ok(token) = data.token(stat.czxid) else { continue };
            let is_settled = !name.is_set || data.granted;
            let is_granted = is_settled && claims::position(&ahead, name.mode) == Position::Front;
            ahead.push(Entry { mode: name.mode, is_settled });
            state.claims.push(Claim { name, node, data, token, is_granted });
        }
        Ok(state)
    }

    /// Returns the locks that have a node and whose names have this prefix, sorted.
    pub(super) async fn lock_names(&self, client: &Client, prefix: &str) -> Result<Vec<LockName>, NodeError> {
        let path = self.paths.locks();
        let nodes = client.list_children(&path).await.map_err(NodeError::at(&path))?;
        let mut names: Vec<_> = nodes.iter().filter_map(|node| wire::lock_name(node)).collect();
        names.retain(|name| name.as_str().starts_with(prefix));
        names.sort_unstable();
        Ok(names)
    }

    /// Waits until a majority confirms that the server is up to date: its next answers show everything that was answered before
    /// this call.
    pub(super) async fn confirm(&self, client: &Client) -> Result<(), Error> {
        let path = self.paths.locks();
        Store::send_check(client, [path.as_str()]).await?;
        Ok(())
    }

    /// Reads locks as they are after everything that was answered before this call.
    pub(super) async fn confirmed_states(
        &self,
        client: &Client,
        locks: &[LockName],
    ) -> Result<Vec<LockState>, NodeError> {
        let mut confirming = pin!(self.confirm(client));
        let reading = self.lock_states(client, locks);
        let (confirmed, states) = futures_util::future::join(&mut confirming, reading).await;
        confirmed?;
        states
    }
}

/// Divides paths into parts that fit into a request each.
fn pages(paths: &[String]) -> impl Iterator<Item = &[String]> {
    let mut rest = paths;
    std::iter::from_fn(move || {
        let mut bytes = 0;
        let fits = |path: &&String| {
            bytes += path.len() + BYTES_PER_READ;
            bytes <= BYTES_PER_REQUEST
        };
        // A single path always fits: the server has accepted it before.
        let count = rest.iter().take(NODES_PER_REQUEST).take_while(fits).count().max(1).min(rest.len());
        let (page, left) = rest.split_at(count);
        rest = left;
        (!page.is_empty()).then_some(page)
    })
}

fn data(result: Option<MultiReadResult>) -> Result<Option<(Vec<u8>, Stat)>, Error> {
    match result {
        Some(MultiReadResult::Data { data, stat }) => Ok(Some((data, stat))),
        Some(MultiReadResult::Error { err: Error::NoNode }) => Ok(None),
        Some(MultiReadResult::Error { err }) => Err(err),
        _ => Err(Error::UnexpectedError("a read without contents".to_owned())),
    }
}

fn children(result: Option<MultiReadResult>) -> Result<Vec<String>, Error> {
    match result {
        Some(MultiReadResult::Children { children }) => Ok(children),
        Some(MultiReadResult::Error { err: Error::NoNode }) => Ok(Vec::new()),
        Some(MultiReadResult::Error { err }) => Err(err),
        _ => Err(Error::UnexpectedError("a read without children".to_owned())),
    }
}

/// The failure of a transaction that lost every race.
pub(super) fn too_busy(peer: &Peer) -> Failure {
    Unavailable::new(format!("{peer}: other clients change the same nodes all the time; try again"))
        .without_effect()
        .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_divided_into_requests_that_a_server_accepts() {
        for (count, bytes) in [(0, 1), (1, 1 << 20), (2 * NODES_PER_REQUEST + 1, 50), (900, 1600), (3, 200_000)] {
            let paths = vec!["x".repeat(bytes); count];
            let pages: Vec<_> = pages(&paths).collect();
            assert_eq!(pages.concat(), paths);
            for page in pages {
                let sent: usize = page.iter().map(|path| path.len() + BYTES_PER_READ).sum();
                assert!(sent <= BYTES_PER_REQUEST || page.len() == 1, "{sent} bytes");
                assert!((1..=NODES_PER_REQUEST).contains(&page.len()));
            }
        }
    }
}
