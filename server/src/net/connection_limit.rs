//! Limits on connections: of one address before the client is authenticated, of one user after that, and in total. If
//! the service has no users, a client counts as authenticated after its first request.
//!
//! At a limit, a new connection displaces the one that has been idle for the longest, so that silent connections keep
//! no other client out.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

/// The usual [`grace`](ConnectionBounds::grace). Otherwise a thousand clients that reconnect at once would displace each other.
pub(crate) const GRACE: Duration = Duration::from_secs(2);

/// The limits of one port.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ConnectionBounds {
    pub(crate) total: usize,
    /// Of those, connections whose clients are not authenticated yet.
    pub(crate) unauthenticated: usize,
    /// Of those, connections from one address.
    pub(crate) unauthenticated_per_address: usize,
    /// Connections of one user.
    pub(crate) per_user: usize,
    /// A connection that has been idle for less than this is not displaced: it may be in the middle of its login.
    pub(crate) grace: Duration,
}

/// Counts the connections of one port.
#[derive(Debug, Clone)]
pub(crate) struct ConnectionLimit {
    bounds: ConnectionBounds,
    /// Whether idle connections of authenticated clients can be displaced too.
    displaces_authenticated: bool,
    open: Arc<Mutex<Open>>,
}

#[derive(Debug, Default)]
struct Open {
    last_id: u64,
    connections: HashMap<u64, Connection>,
    counts: HashMap<Client, usize>,
    unauthenticated: usize,
    /// Idle connections, the longest idle first.
    idle_unauthenticated: BTreeMap<u64, u64>,
    idle_authenticated: BTreeMap<u64, u64>,
    last_idle: u64,
}

#[derive(Debug)]
struct Connection {
    client: Client,
    /// Its order among the idle connections, and since when it is idle.
    idle: Option<(u64, Instant)>,
    displaced: Arc<Notify>,
}

/// The client of a connection.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Client {
    Unauthenticated(IpAddr),
    User(Arc<str>),
    /// An authenticated client of a service without users.
    WithoutUsers,
}

/// The user has reached its limit of connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TooManyConnections(pub(crate) usize);

/// The permit of one connection, which counts until it is dropped.
#[derive(Debug)]
pub(crate) struct ConnectionPermit {
    limit: ConnectionLimit,
    id: u64,
    displaced: Arc<Notify>,
}

impl ConnectionLimit {
    pub(crate) fn new(bounds: ConnectionBounds, displaces_authenticated: bool) -> ConnectionLimit {
        ConnectionLimit { bounds, displaces_authenticated, open: Arc::default() }
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of open connections.
    pub(crate) fn len(&self) -> usize {
        self.open().connections.len()
    }

    /// Counts a new connection. `None` if there are too many, and none can be displaced.
    pub(crate) fn enter(&self, address: IpAddr) -> Option<ConnectionPermit> {
        let client = Client::Unauthenticated(network(address));
        let grace = self.bounds.grace;
        let mut open = self.open();
        if open.count(&client) >= self.bounds.unauthenticated_per_address
            && !open.displace_unauthenticated(grace, Some(&client))
        {
            return None;
        }
        if open.unauthenticated >= self.bounds.unauthenticated && !open.displace_unauthenticated(grace, None) {
            return None;
        }
        if open.connections.len() >= self.bounds.total
            && !open.displace_unauthenticated(grace, None)
            && !(self.displaces_authenticated && open.displace_authenticated(grace, None))
        {
            return None;
        }
        open.last_id += 1;
        let (id, displaced) = (open.last_id, Arc::new(Notify::new()));
        open.add(id, Connection { client, idle: None, displaced: displaced.clone() });
        open.set_idle(id, true);
        Some(ConnectionPermit { limit: self.clone(), id, displaced })
    }
}

impl Open {
    fn count(&self, client: &Client) -> usize {
        self.counts.get(client).copied().unwrap_or(0)
    }

    fn add(&mut self, id: u64, connection: Connection) {
        *self.counts.entry(connection.client.clone()).or_default() += 1;
        self.unauthenticated += usize::from(matches!(connection.client, Client::Unauthenticated(_)));
        self.connections.insert(id, connection);
    }

    fn remove(&mut self, id: u64) -> Option<Connection> {
        self.set_idle(id, false);
        let connection = self.connections.remove(&id)?;
        self.unauthenticated -= usize::from(matches!(connection.client, Client::Unauthenticated(_)));
        if let Some(count) = self.counts.get_mut(&connection.client) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&connection.client);
            }
        }
        Some(connection)
    }

    fn set_idle(&mut self, id: u64, is_idle: bool) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let idle = match connection.client {
            Client::Unauthenticated(_) => &mut self.idle_unauthenticated,
            _ => &mut self.idle_authenticated,
        };
        if let Some((order, _)) = connection.idle.take() {
            idle.remove(&order);
        }
        if is_idle {
            self.last_idle += 1;
            connection.idle = Some((self.last_idle, Instant::now()));
            idle.insert(self.last_idle, id);
        }
    }

    fn displace_unauthenticated(&mut self, grace: Duration, of: Option<&Client>) -> bool {
        let longest = self.longest_idle(&self.idle_unauthenticated, grace, of);
        self.displace(longest)
    }

    fn displace_authenticated(&mut self, grace: Duration, of: Option<&Client>) -> bool {
        let longest = self.longest_idle(&self.idle_authenticated, grace, of);
        self.displace(longest)
    }

    fn longest_idle(&self, idle: &BTreeMap<u64, u64>, grace: Duration, of: Option<&Client>) -> Option<u64> {
        let is_of = |id: &&u64| of.is_none_or(|of| self.connections.get(id).is_some_and(|found| found.client == *of));
        let id = *idle.values().find(is_of)?;
        let (_, since) = self.connections.get(&id)?.idle?;
        (since.elapsed() >= grace).then_some(id)
    }

    /// Displaces a connection, and notifies it.
    fn displace(&mut self, id: Option<u64>) -> bool {
        let displaced = id.and_then(|id| self.remove(id));
        displaced.is_some_and(|connection| {
            connection.displaced.notify_one();
            true
        })
    }
}

impl ConnectionPermit {
    /// Returns its id, unique on this port.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Waits until another connection displaces this one.
    pub(crate) async fn displaced(&self) {
        self.displaced.notified().await;
    }

    /// Marks the client as authenticated: as this user, or as a client of a service without users.
    ///
    /// # Errors
    ///
    /// The user has too many connections.
    pub(crate) fn set_authenticated(&self, user: Option<&str>) -> Result<(), TooManyConnections> {
        let mut open = self.limit.open();
        let authenticated = user.map_or(Client::WithoutUsers, |user| Client::User(user.into()));
        match open.connections.get(&self.id) {
            Some(connection) if connection.client != authenticated => {}
            _ => return Ok(()),
        }
        let ConnectionBounds { per_user: most, grace, .. } = self.limit.bounds;
        let is_full = user.is_some() && open.count(&authenticated) >= most;
        let displaces = self.limit.displaces_authenticated;
        if is_full && !(displaces && open.displace_authenticated(grace, Some(&authenticated))) {
            return Err(TooManyConnections(most));
        }
        if let Some(connection) = open.remove(self.id) {
            open.add(self.id, Connection { client: authenticated, idle: None, ..connection });
            open.set_idle(self.id, self.limit.displaces_authenticated);
        }
        Ok(())
    }

    pub(crate) fn is_unauthenticated(&self) -> bool {
        let open = self.limit.open();
        open.connections
            .get(&self.id)
            .is_some_and(|connection| matches!(connection.client, Client::Unauthenticated(_)))
    }

    /// Sets whether the connection is idle, and so may be displaced.
    pub(crate) fn set_idle(&self, is_idle: bool) {
        self.limit.open().set_idle(self.id, is_idle);
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.limit.open().remove(self.id);
    }
}

/// Returns the address by which a client is counted: for IPv6 its /64 network, since one host usually has all of it.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => address.into(),
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Longer than a test takes.
    const GRACE: Duration = Duration::from_secs(600);

    const BOUNDS: ConnectionBounds =
        ConnectionBounds { total: 6, unauthenticated: 4, unauthenticated_per_address: 2, per_user: 2, grace: GRACE };

    fn address(last: u8) -> IpAddr {
        [127, 0, 0, last].into()
    }

    /// Makes all idle connections old enough to be displaced.
    fn let_idle_time_pass(limit: &ConnectionLimit) {
        for connection in limit.open().connections.values_mut() {
            if let Some((_, since)) = &mut connection.idle {
                *since = since.checked_sub(GRACE).expect("a while ago");
            }
        }
    }

    fn is_open(permit: &ConnectionPermit) -> bool {
        permit.limit.open().connections.contains_key(&permit.id)
    }

    #[test]
    fn an_address_displaces_its_own_oldest_connection_and_no_other() {
        let limit = ConnectionLimit::new(BOUNDS, false);
        let other = limit.enter(address(1)).expect("room");
        let (first, second) = (limit.enter(address(2)).expect("room"), limit.enter(address(2)).expect("room"));
        assert!(limit.enter(address(2)).is_none(), "both may be in the middle of their login");
        let_idle_time_pass(&limit);
        let third = limit.enter(address(2)).expect("the first is displaced");
        assert_eq!([&other, &first, &second, &third].map(is_open), [true, false, true, true]);
        drop(first);
        assert_eq!(limit.len(), 3);
    }

    #[test]
    fn authenticated_clients_are_not_displaced_and_are_limited_per_user() {
        let limit = ConnectionLimit::new(BOUNDS, false);
        let authenticated: Vec<_> = (0..2)
            .map(|_| {
                let permit = limit.enter(address(1)).expect("room");
                permit.set_authenticated(Some("ci")).expect("room");
                permit
            })
            .collect();
        let third = limit.enter(address(1)).expect("room");
        assert_eq!(third.set_authenticated(Some("ci")), Err(TooManyConnections(2)));
        third.set_authenticated(Some("dev")).expect("another user");
        assert!(!third.is_unauthenticated());
        let unauthenticated: Vec<_> = (2..5).map(|last| limit.enter(address(last)).expect("room")).collect();
        assert!(limit.enter(address(9)).is_none(), "six is the total");
        let_idle_time_pass(&limit);
        let _newest = limit.enter(address(9)).expect("the oldest unauthenticated connection is displaced");
        assert!(!is_open(&unauthenticated[0]) && is_open(&unauthenticated[1]) && authenticated.iter().all(is_open));
    }

    #[test]
    fn an_idle_authenticated_connection_is_displaced_if_the_port_allows_it() {
        let limit = ConnectionLimit::new(ConnectionBounds { total: 2, ..BOUNDS }, true);
        let (busy, idle) = (limit.enter(address(1)).expect("room"), limit.enter(address(1)).expect("room"));
        for permit in [&busy, &idle] {
            permit.set_authenticated(None).expect("room");
        }
        busy.set_idle(false);
        let_idle_time_pass(&limit);
        let _newest = limit.enter(address(2)).expect("the idle one is displaced");
        assert!(is_open(&busy) && !is_open(&idle));
        assert!(limit.enter(address(3)).is_none());
    }

    #[test]
    fn an_ipv6_network_is_one_client() {
        let of = |text: &str| network(text.parse().expect("an address"));
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:2"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:10.0.0.1"), of("10.0.0.1"));
    }
}
