//! Limits on connections: of one address before the client is authenticated, of one user after that, and in total.
//!
//! A new connection takes the place of the one that has been idle for the longest, so that silent connections keep no
//! other client out.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

/// A connection that has been idle for less than this keeps its place: it may be in the middle of its login. Otherwise
/// a thousand clients that come back at once would keep displacing each other.
const GRACE: Duration = Duration::from_secs(2);

/// How many connections there may be.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ConnectionBounds {
    pub(crate) total: usize,
    /// Of those, connections whose clients are not known yet.
    pub(crate) unknown: usize,
    /// Of those, connections from one address.
    pub(crate) unknown_per_address: usize,
    /// Connections of one user.
    pub(crate) per_user: usize,
}

/// Counts the connections of one port.
#[derive(Debug, Clone)]
pub(crate) struct ConnectionLimit {
    bounds: ConnectionBounds,
    /// Whether a known client loses its connection, too, when it is idle and the place is needed.
    displaces_known: bool,
    open: Arc<Mutex<Open>>,
}

#[derive(Debug, Default)]
struct Open {
    last_id: u64,
    connections: HashMap<u64, Connection>,
    counts: HashMap<Client, usize>,
    unknown: usize,
    /// Idle connections, the longest idle first.
    idle_unknown: BTreeMap<u64, u64>,
    idle_known: BTreeMap<u64, u64>,
    last_idle: u64,
}

#[derive(Debug)]
struct Connection {
    client: Client,
    /// Since when it is idle, and its place among those that are.
    idle: Option<(u64, Instant)>,
    displaced: Arc<Notify>,
}

/// The client of a connection, as far as it is known.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Client {
    Unknown(IpAddr),
    User(Arc<str>),
    /// Known, where there are no users.
    Anyone,
}

/// The user has too many connections already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TooMany(pub(crate) usize);

/// One connection, counted until this is dropped.
#[derive(Debug)]
pub(crate) struct Counted {
    limit: ConnectionLimit,
    id: u64,
    displaced: Arc<Notify>,
}

impl ConnectionLimit {
    pub(crate) fn new(bounds: ConnectionBounds, displaces_known: bool) -> ConnectionLimit {
        ConnectionLimit { bounds, displaces_known, open: Arc::default() }
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.open().connections.len()
    }

    /// Counts a new connection. `None` if there are too many, and none can be displaced.
    pub(crate) fn enter(&self, address: IpAddr) -> Option<Counted> {
        let client = Client::Unknown(network(address));
        let mut open = self.open();
        if open.count(&client) >= self.bounds.unknown_per_address && !open.displace_unknown(Some(&client)) {
            return None;
        }
        if open.unknown >= self.bounds.unknown && !open.displace_unknown(None) {
            return None;
        }
        if open.connections.len() >= self.bounds.total
            && !open.displace_unknown(None)
            && !(self.displaces_known && open.displace_known(None))
        {
            return None;
        }
        open.last_id += 1;
        let (id, displaced) = (open.last_id, Arc::new(Notify::new()));
        open.add(id, Connection { client, idle: None, displaced: displaced.clone() });
        open.set_idle(id, true);
        Some(Counted { limit: self.clone(), id, displaced })
    }
}

impl Open {
    fn count(&self, client: &Client) -> usize {
        self.counts.get(client).copied().unwrap_or(0)
    }

    fn add(&mut self, id: u64, connection: Connection) {
        *self.counts.entry(connection.client.clone()).or_default() += 1;
        self.unknown += usize::from(matches!(connection.client, Client::Unknown(_)));
        self.connections.insert(id, connection);
    }

    fn remove(&mut self, id: u64) -> Option<Connection> {
        self.set_idle(id, false);
        let connection = self.connections.remove(&id)?;
        self.unknown -= usize::from(matches!(connection.client, Client::Unknown(_)));
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
            Client::Unknown(_) => &mut self.idle_unknown,
            _ => &mut self.idle_known,
        };
        if let Some((place, _)) = connection.idle.take() {
            idle.remove(&place);
        }
        if is_idle {
            self.last_idle += 1;
            connection.idle = Some((self.last_idle, Instant::now()));
            idle.insert(self.last_idle, id);
        }
    }

    fn displace_unknown(&mut self, of: Option<&Client>) -> bool {
        let longest = self.longest_idle(&self.idle_unknown, of);
        self.displace(longest)
    }

    fn displace_known(&mut self, of: Option<&Client>) -> bool {
        let longest = self.longest_idle(&self.idle_known, of);
        self.displace(longest)
    }

    fn longest_idle(&self, idle: &BTreeMap<u64, u64>, of: Option<&Client>) -> Option<u64> {
        let is_of = |id: &&u64| of.is_none_or(|of| self.connections.get(id).is_some_and(|found| found.client == *of));
        let id = *idle.values().find(is_of)?;
        let (_, since) = self.connections.get(&id)?.idle?;
        (since.elapsed() >= GRACE).then_some(id)
    }

    /// Takes a connection's place, and tells it so.
    fn displace(&mut self, id: Option<u64>) -> bool {
        let displaced = id.and_then(|id| self.remove(id));
        displaced.is_some_and(|connection| {
            connection.displaced.notify_one();
            true
        })
    }
}

impl Counted {
    /// Its number, which no other connection of this port has.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Waits until another connection has taken this one's place.
    pub(crate) async fn displaced(&self) {
        self.displaced.notified().await;
    }

    /// Its client is known from now on: it is this user, or there are no users.
    ///
    /// # Errors
    ///
    /// The user has too many connections.
    pub(crate) fn be_known(&self, user: Option<&str>) -> Result<(), TooMany> {
        let mut open = self.limit.open();
        let known = user.map_or(Client::Anyone, |user| Client::User(user.into()));
        match open.connections.get(&self.id) {
            Some(connection) if connection.client != known => {}
            _ => return Ok(()),
        }
        let most = self.limit.bounds.per_user;
        let is_full = user.is_some() && open.count(&known) >= most;
        if is_full && !(self.limit.displaces_known && open.displace_known(Some(&known))) {
            return Err(TooMany(most));
        }
        if let Some(connection) = open.remove(self.id) {
            open.add(self.id, Connection { client: known, idle: None, ..connection });
            open.set_idle(self.id, self.limit.displaces_known);
        }
        Ok(())
    }

    pub(crate) fn is_unknown(&self) -> bool {
        let open = self.limit.open();
        open.connections.get(&self.id).is_some_and(|connection| matches!(connection.client, Client::Unknown(_)))
    }

    /// Sets whether the connection is idle, and so may be displaced.
    pub(crate) fn set_idle(&self, is_idle: bool) {
        self.limit.open().set_idle(self.id, is_idle);
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.limit.open().remove(self.id);
    }
}

/// The address of one client, or of the network that it alone has.
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

    const BOUNDS: ConnectionBounds = ConnectionBounds { total: 6, unknown: 4, unknown_per_address: 2, per_user: 2 };

    fn address(last: u8) -> IpAddr {
        [127, 0, 0, last].into()
    }

    /// All of them have been idle for long.
    fn grow_old(limit: &ConnectionLimit) {
        for connection in limit.open().connections.values_mut() {
            if let Some((_, since)) = &mut connection.idle {
                *since = since.checked_sub(GRACE).expect("a while ago");
            }
        }
    }

    fn is_open(counted: &Counted) -> bool {
        counted.limit.open().connections.contains_key(&counted.id)
    }

    #[test]
    fn an_address_displaces_its_own_oldest_connection_and_no_other() {
        let limit = ConnectionLimit::new(BOUNDS, false);
        let other = limit.enter(address(1)).expect("room");
        let (first, second) = (limit.enter(address(2)).expect("room"), limit.enter(address(2)).expect("room"));
        assert!(limit.enter(address(2)).is_none(), "both may be in the middle of their login");
        grow_old(&limit);
        let third = limit.enter(address(2)).expect("the first has to go");
        assert_eq!([&other, &first, &second, &third].map(is_open), [true, false, true, true]);
        drop(first);
        assert_eq!(limit.len(), 3);
    }

    #[test]
    fn known_clients_keep_their_places_and_have_only_so_many() {
        let limit = ConnectionLimit::new(BOUNDS, false);
        let known: Vec<_> = (0..2)
            .map(|_| {
                let counted = limit.enter(address(1)).expect("room");
                counted.be_known(Some("ci")).expect("room");
                counted
            })
            .collect();
        let third = limit.enter(address(1)).expect("room");
        assert_eq!(third.be_known(Some("ci")), Err(TooMany(2)));
        third.be_known(Some("dev")).expect("another user");
        assert!(!third.is_unknown());
        let unknown: Vec<_> = (2..5).map(|last| limit.enter(address(last)).expect("room")).collect();
        assert!(limit.enter(address(9)).is_none(), "there are six");
        grow_old(&limit);
        let _newest = limit.enter(address(9)).expect("the oldest unknown one has to go");
        assert!(!is_open(&unknown[0]) && is_open(&unknown[1]) && known.iter().all(is_open));
    }

    #[test]
    fn an_idle_connection_of_a_known_client_may_have_to_go_where_that_is_said() {
        let limit = ConnectionLimit::new(ConnectionBounds { total: 2, ..BOUNDS }, true);
        let (busy, idle) = (limit.enter(address(1)).expect("room"), limit.enter(address(1)).expect("room"));
        for counted in [&busy, &idle] {
            counted.be_known(None).expect("room");
        }
        busy.set_idle(false);
        grow_old(&limit);
        let _newest = limit.enter(address(2)).expect("the idle one has to go");
        assert!(is_open(&busy) && !is_open(&idle));
        assert!(limit.enter(address(3)).is_none());
    }

    #[test]
    fn a_network_of_version_six_is_one_client() {
        let of = |text: &str| network(text.parse().expect("an address"));
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:2"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:10.0.0.1"), of("10.0.0.1"));
    }
}
