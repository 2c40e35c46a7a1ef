//! The parts of a `postgres:` URL that are ours, and a URL without its secret.

use crate::engine::url::{decoded, split_login};

/// What follows the scheme without the secret, and the secret: that of the user, or the option `password`.
pub(crate) fn split_secret(rest: &str) -> (String, Option<String>) {
    let (shown, mut secret) = split_login(rest);
    let Some((place, query)) = shown.split_once('?').map(|(place, query)| (place.to_owned(), query.to_owned()))
    else {
        return (shown, secret);
    };
    let mut kept = Vec::new();
    for option in query.split('&') {
        match option.split_once('=') {
            Some((name, value)) if name.eq_ignore_ascii_case("password") => secret = Some(decoded(value)),
            _ => kept.push(option),
        }
    }
    match kept.is_empty() {
        true => (place, secret),
        false => (format!("{place}?{}", kept.join("&")), secret),
    }
}

/// Takes an option of ours out of a URL: what is left is for PostgreSQL's own parser.
pub(super) fn take_option(url: &mut String, wanted: &str) -> Option<String> {
    let (place, query) = url.split_once('?')?;
    let (mut kept, mut found) = (Vec::new(), None);
    for option in query.split('&') {
        match option.split_once('=') {
            Some((name, value)) if name == wanted => found = Some(decoded(value)),
            _ => kept.push(option),
        }
    }
    let rest = if kept.is_empty() { place.to_owned() } else { format!("{place}?{}", kept.join("&")) };
    *url = rest;
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_without_its_secret_leads_to_the_same_place() {
        for (url, without, secret) in [
            ("//host", "//host", None),
            ("//me@host/db", "//me@host/db", None),
            ("//me:xyzzy@host:5432/db?sslmode=require", "//me@host:5432/db?sslmode=require", Some("xyzzy")),
            ("//me:xy%2Fzzy@host", "//me@host", Some("xy/zzy")),
            ("//me:xy@zzy@host", "//me@host", Some("xy@zzy")),
            ("//me:xy/zzy@host", "//me@host", Some("xy/zzy")),
            ("//me@host/db?password=xyzzy", "//me@host/db", Some("xyzzy")),
            ("//me@host/db?a=b&password=xyzzy&c=d", "//me@host/db?a=b&c=d", Some("xyzzy")),
        ] {
            assert_eq!(split_secret(url), (without.to_owned(), secret.map(str::to_owned)), "{url}");
        }
        assert_eq!(split_secret("me:xyzzy@host").0, "me…");
    }

    #[test]
    fn our_options_are_taken_out() {
        let mut url = "postgres://host/db?mode=advisory&connect_timeout=3".to_owned();
        assert_eq!(take_option(&mut url, "mode").as_deref(), Some("advisory"));
        assert_eq!(take_option(&mut url, "mode"), None);
        assert_eq!(take_option(&mut url, "connect_timeout").as_deref(), Some("3"));
        assert_eq!(url, "postgres://host/db");
    }
}
