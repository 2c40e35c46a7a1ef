//! Why no node of a URL serves this client, in one message for all of them.

use super::{Config, ServiceBackend};
use crate::engine::remote::{Address, Backend as _, ConnectError, Peer};

/// Why the nodes of a URL do not serve this client, in one round of attempts.
pub(super) struct NodeErrors<'a> {
    addresses: &'a [Address],
    /// The last error of each node.
    errors: Vec<Option<ConnectError>>,
}

/// Whether a client has been served before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ClientAge {
    /// It has no session. A wrong secret is reported at once, also while a node cannot be reached.
    New,
    /// It has sessions. A node that cannot be reached may be back before they end.
    Old,
}

impl NodeErrors<'_> {
    pub(super) fn new(config: &Config) -> NodeErrors<'_> {
        NodeErrors { addresses: &config.addresses, errors: vec![None; config.addresses.len()] }
    }

    pub(super) fn note(&mut self, node: usize, error: ConnectError) {
        self.errors[node] = Some(error.at(&Peer::new(ServiceBackend::NAME, self.addresses[node].to_string())));
    }

    /// Whether a node answers, and knows no leader.
    pub(super) fn is_leaderless(&self) -> bool {
        self.errors.iter().flatten().any(ConnectError::is_leaderless)
    }

    /// Whether a node has said that it knows no leader, could not be reached, or never serves this client: it cannot relay to the
    /// one that leads.
    pub(super) fn is_useless(&self, node: usize) -> bool {
        let is_useless =
            |error: &ConnectError| error.is_leaderless() || error.is_unreachable() || error.is_permanent();
        self.errors[node].as_ref().is_some_and(is_useless)
    }

    /// Returns the nodes that never serve this client, with the reasons.
    pub(super) fn refusals(&self) -> impl Iterator<Item = (usize, &ConnectError)> {
        let errors = self.errors.iter().enumerate().filter_map(|(node, error)| Some((node, error.as_ref()?)));
        errors.filter(|(_, error)| error.is_permanent())
    }

    /// Returns one error for all nodes. A node that answers says more than one that cannot be reached. The error is permanent only
    /// if no node may serve this client later: a permanent error ends every wait.
    pub(super) fn summary(&self, client: ClientAge) -> ConnectError {
        let is_hopeless =
            |error: &ConnectError| error.is_permanent() || client == ClientAge::New && error.is_unreachable();
        let is_hopeless = self.errors.iter().all(|error| error.as_ref().is_some_and(is_hopeless));
        let known = || self.addresses.iter().map(ToString::to_string).zip(&self.errors);
        let known = || known().filter_map(|(address, error)| Some((address, error.as_ref()?)));
        let answering: Vec<_> =
            known().filter(|(_, error)| error.is_leaderless()).map(|(address, _)| address).collect();
        let mut reasons: Vec<(&str, Vec<String>)> = Vec::new();
        for (address, error) in known().filter(|(_, error)| !error.is_leaderless()) {
            match reasons.iter_mut().find(|(reason, _)| *reason == error.reason()) {
                Some((_, addresses)) => addresses.push(address),
                None => reasons.push((error.reason(), vec![address])),
            }
        }
        let Some((_, last)) = known().next_back() else { return ConnectError::closed() };
        if self.addresses.len() == 1 {
            return last.clone();
        }
        // The operator has to change something there, so that stands for itself.
        if let Some((_, permanent)) = known().find(|(_, error)| is_hopeless && error.is_permanent()) {
            return permanent.clone();
        }
        if let ([], [(_, addresses)]) = (&answering[..], &reasons[..]) {
            // Its advice fits all of them.
            let all = Peer::new(ServiceBackend::NAME, addresses.join(", "));
            return last.clone().unnamed().at(&all);
        }
        let count = self.addresses.len();
        let mut parts = Vec::new();
        if !answering.is_empty() {
            let why = match answering.len() > count / 2 {
                true => "an election may be under way, or too few nodes reach each other",
                false => "a majority is needed",
            };
            let nodes = match answering.len() {
                1 => format!("1 of {count} nodes answers ({})", list(&answering)),
                all if all == count => format!("all {count} nodes answer"),
                some => format!("{some} of {count} nodes answer ({})", list(&answering)),
            };
            parts.push(format!("{nodes}, and no node leads: {why}"));
        }
        parts.extend(reasons.iter().map(|(reason, addresses)| format!("{}: {reason}", list(addresses))));
        let named = Peer::new(ServiceBackend::NAME, String::new());
        ConnectError::transient(parts.join("; ")).advising("See `palisade cluster status`").at(&named)
    }
}

/// Lists addresses as in a sentence.
fn list(addresses: &[String]) -> String {
    match addresses {
        [] => String::new(),
        [one] => one.clone(),
        [some @ .., last] => format!("{} and {last}", some.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    fn refused() -> ConnectError {
        ConnectError::unreachable(&io::Error::from(io::ErrorKind::ConnectionRefused))
    }

    fn summary_for(client: ClientAge, errors: [ConnectError; 3]) -> ConnectError {
        let config = Config::parse("//a:1,b:2,c:3").expect("a URL");
        let mut nodes = NodeErrors::new(&config);
        errors.into_iter().enumerate().for_each(|(at, error)| nodes.note(at, error));
        nodes.summary(client)
    }

    fn summary(errors: [ConnectError; 3]) -> String {
        summary_for(ClientAge::Old, errors).to_string()
    }

    #[test]
    fn a_node_that_refuses_the_client_does_not_hide_that_another_may_serve_it() {
        let denied = || ConnectError::denied("login failed");
        for client in [ClientAge::New, ClientAge::Old] {
            let error = summary_for(client, [denied(), refused(), ConnectError::closed()]);
            assert!(!error.is_permanent(), "{error}");
            assert_eq!(
                error.to_string(),
                "the service: a:1: login failed; b:2: connection refused; c:3: the connection was closed. See `palisade cluster \
                 status`"
            );
            let error = summary_for(client, [denied(), ConnectError::permanent("is another server"), denied()]);
            assert_eq!(
                (error.is_permanent(), error.to_string()),
                (true, "the service at a:1: login failed".to_owned())
            );
        }
    }

    #[test]
    fn a_wrong_secret_is_reported_at_once_while_a_node_is_down_and_waits_outlast_both() {
        let one_is_down = || [refused(), ConnectError::denied("login failed"), ConnectError::denied("login failed")];
        assert!(summary_for(ClientAge::New, one_is_down()).is_permanent());
        assert!(!summary_for(ClientAge::Old, one_is_down()).is_permanent());
    }

    #[test]
    fn a_node_that_answers_says_more_than_those_that_cannot_be_reached() {
        assert_eq!(
            summary([ConnectError::leaderless(), refused(), refused()]),
            "the service: 1 of 3 nodes answers (a:1), and no node leads: a majority is needed; b:2 and c:3: connection \
             refused. See `palisade cluster status`"
        );
        assert_eq!(
            summary([refused(), ConnectError::leaderless(), ConnectError::transient("is odd")]),
            "the service: 1 of 3 nodes answers (b:2), and no node leads: a majority is needed; a:1: connection refused; \
             c:3: is odd. See `palisade cluster status`"
        );
    }

    #[test]
    fn an_election_may_be_under_way_while_a_majority_answers() {
        let all = summary([ConnectError::leaderless(), ConnectError::leaderless(), ConnectError::leaderless()]);
        assert!(all.contains("all 3 nodes answer") && all.contains("an election may be under way"), "{all}");
        let two = summary([ConnectError::leaderless(), refused(), ConnectError::leaderless()]);
        assert!(
            two.contains("2 of 3 nodes answer (a:1 and c:3)") && two.contains("b:2: connection refused"),
            "{two}"
        );
    }

    #[test]
    fn only_a_node_that_may_serve_this_client_is_asked_to_relay() {
        let config = Config::parse("//a:1,b:2,c:3,d:4,e:5").expect("a URL");
        let mut nodes = NodeErrors::new(&config);
        let errors = [
            ConnectError::transient("is odd"),
            ConnectError::leaderless(),
            refused(),
            ConnectError::permanent("is another server"),
            ConnectError::denied("login failed"),
        ];
        errors.into_iter().enumerate().for_each(|(at, error)| nodes.note(at, error));
        assert_eq!([0, 1, 2, 3, 4].map(|node| nodes.is_useless(node)), [false, true, true, true, true]);
    }

    #[test]
    fn one_reason_of_all_nodes_is_given_once() {
        let all = summary([refused(), refused(), refused()]);
        assert_eq!(
            all,
            "the service at a:1, b:2, c:3: cannot be reached: connection refused. Is it running, and is the address right?"
        );
    }
}
