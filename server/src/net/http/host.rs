//! Checks the host that a request names. A web page can make its own host name resolve to this service and then send requests
//! from its visitor's browser (DNS rebinding). Such requests name the page's host.

use std::net::IpAddr;

use axum::http::{HeaderMap, Uri, header};

use super::problem::Problem;

/// Checks the host of a request without a user: an IP address, `localhost`, or one of these names.
pub(super) fn check(names: &[String], uri: &Uri, headers: &HeaderMap) -> Result<(), Problem> {
    let in_head = headers.get_all(header::HOST).iter().map(|host| host.to_str().unwrap_or_default());
    for host in in_head.chain(uri.authority().map(|authority| authority.as_str())) {
        if !is_ours(names, host) {
            return Err(Problem::misdirected(host));
        }
    }
    Ok(())
}

fn is_ours(names: &[String], host: &str) -> bool {
    let has_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
    if let Some(rest) = host.strip_prefix('[') {
        let address =
            rest.split_once(']').filter(|(_, port)| port.strip_prefix(':').map_or(port.is_empty(), has_port));
        return address.is_some_and(|(address, _)| address.parse::<std::net::Ipv6Addr>().is_ok());
    }
    let name = host.rsplit_once(':').filter(|(_, port)| has_port(port)).map_or(host, |(name, _)| name);
    name.parse::<IpAddr>().is_ok()
        || ["localhost"]
            .into_iter()
            .chain(names.iter().map(String::as_str))
            .any(|ours| ours.eq_ignore_ascii_case(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_and_known_names_are_ours() {
        let names = ["locks.example".to_owned()];
        for ours in
            ["127.0.0.1", "127.0.0.1:7421", "[::1]:7421", "[::1]", "LocalHost:7421", "localhost", "Locks.Example:80"]
        {
            assert!(is_ours(&names, ours), "{ours}");
        }
        for other in [
            "",
            "evil.example",
            "evil.example:7421",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "[::1",
            "[::1]x",
            "[localhost]",
            "localhost:x",
            "1.2.3",
        ] {
            assert!(!is_ours(&names, other), "{other}");
        }
    }
}
