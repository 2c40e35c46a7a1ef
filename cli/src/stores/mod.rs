//! Connections to stores: URLs, their secrets, TLS.

pub(crate) mod postgres;
pub(crate) mod s3;
mod tls;
pub(crate) mod web;

/// Shorter secrets are not redacted in messages: they would match ordinary text.
const SHORTEST_SECRET: usize = 3;

/// Returns the path in the rest of a URL: `/a/b` for `///a/b`, and `a/b` for `a/b`.
pub(crate) fn path(rest: &str) -> &str {
    match rest.strip_prefix("//") {
        Some(absolute) if absolute.starts_with('/') => absolute,
        _ => rest,
    }
}

/// Returns a URL without user, secret and options: `postgres://db:5432/shop`.
pub(crate) fn redacted(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    match (rest.rfind('@'), rest.find(['?', '#'])) {
        // The `@` may be part of the secret or of an option.
        (Some(at), Some(options)) if at > options => format!("{scheme}://…"),
        (at, options) => {
            let begin = at.map_or(0, |at| at + 1);
            format!("{scheme}://{}", &rest[begin..options.unwrap_or(rest.len())])
        }
    }
}

/// Adds the secret in an environment variable to a URL of MySQL or Redis that has a login without one.
pub(crate) fn with_secret(url: &str) -> String {
    let found = match url.split_once(':') {
        Some(("mysql", _)) => secret_in(&["MYSQL_PWD"]),
        Some(("redis" | "rediss", _)) => secret_in(&[]),
        _ => None,
    };
    found.and_then(|secret| insert_secret(url, &secret)).unwrap_or_else(|| url.to_owned())
}

/// Returns the secret in one of these environment variables of the store. They come before `PALISADE_SECRET`, which may be for
/// the engine of the locks.
fn secret_in(variables: &[&str]) -> Option<String> {
    [variables, &["PALISADE_SECRET"]].concat().into_iter().find_map(variable)
}

/// Returns the value of an environment variable, unless it is empty.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

fn insert_secret(url: &str, secret: &str) -> Option<String> {
    let (scheme, rest) = url.split_once("://")?;
    let at = rest[..rest.find('?').unwrap_or(rest.len())].rfind('@')?;
    let user = rest[..at].strip_suffix(':').unwrap_or(&rest[..at]);
    let secret = percent_encode(secret);
    (!user.contains(':')).then(|| format!("{scheme}://{user}:{secret}{}", &rest[at..]))
}

/// Removes the secret of this URL from a message, which may quote it.
pub(crate) fn redact_secret(message: String, url: &str) -> String {
    let secrets = secrets(url).into_iter().filter(|secret| secret.len() >= SHORTEST_SECRET);
    secrets.fold(message, |message, secret| message.replace(&secret, "…"))
}

/// Returns the secrets of a URL, percent-encoded and decoded.
fn secrets(url: &str) -> Vec<String> {
    let (scheme, rest) = url.split_once("://").map_or((None, url), |(scheme, rest)| (Some(scheme), rest));
    let user = rest.rfind('@').filter(|_| scheme.is_some()).map(|at| &rest[..at]);
    let in_user = match scheme {
        // Consul has tokens and no users. The colon before a token is easily forgotten.
        Some("consul" | "consuls") => user.map(|user| user.trim_start_matches(':')),
        _ => user.and_then(|user| user.split_once(':')).map(|(_, secret)| secret),
    };
    let in_options = rest.split(['?', '&', ' ']).filter_map(|part| {
        let (name, value) = part.split_once('=')?;
        // `secret_file` names a file.
        let is_file = name.ends_with("_file");
        let is_secret = ["password", "passwd", "secret"].iter().any(|word| name.to_lowercase().contains(word));
        (is_secret && !is_file).then_some(value)
    });
    let written = in_user.into_iter().chain(in_options).filter(|secret| !secret.is_empty());
    let both = written.flat_map(|secret| [secret.to_owned(), percent_decode(secret)]);
    let mut both: Vec<String> = both.collect();
    // The longest first, because one may contain another.
    both.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
    both
}

fn percent_encode(text: &str) -> String {
    percent_encoding::utf8_percent_encode(text, percent_encoding::NON_ALPHANUMERIC).to_string()
}

/// Decodes `%41` and the like.
fn percent_decode(text: &str) -> String {
    percent_encoding::percent_decode_str(text).decode_utf8_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_redacted_url_has_no_secret() {
        for (url, expected) in [
            ("redis://localhost", "redis://localhost"),
            ("redis://:xyzzy@localhost:6379/0", "redis://localhost:6379/0"),
            ("postgres://u:xy@zzy@db:5432/shop?sslmode=disable", "postgres://db:5432/shop"),
            ("postgres://db/shop?password=xyzzy", "postgres://db/shop"),
            ("postgres://db/shop?password=xy@zzy", "postgres://…"),
            ("mysql://u:xy?zzy@db/shop", "mysql://…"),
        ] {
            assert_eq!(redacted(url), expected);
        }
    }

    #[test]
    fn a_secret_is_inserted_only_where_one_is_missing() {
        for (url, expected) in [
            ("mysql://me@db/shop", Some("mysql://me:xy%20zzy@db/shop")),
            ("mysql://me:@db/shop?ssl-ca=/a@b", Some("mysql://me:xy%20zzy@db/shop?ssl-ca=/a@b")),
            ("redis://:@db", Some("redis://:xy%20zzy@db")),
            ("redis://db/0?a=b@c", None),
            ("mysql://me:own@db/shop", None),
            ("redis://:own@db", None),
        ] {
            assert_eq!(insert_secret(url, "xy zzy").as_deref(), expected);
        }
    }

    #[test]
    fn a_message_that_quotes_a_url_has_no_secret() {
        for (url, secret) in [
            ("postgres://u:xyzzy@db/shop", "xyzzy"),
            ("postgres://u:xy%20zzy@db/shop", "xy zzy"),
            ("postgres://u:xy%20zzy@db/shop", "xy%20zzy"),
            ("postgres://u:a:b@c@db/shop", "a:b@c"),
            ("consul://:xyzzy@db", "xyzzy"),
            ("consuls://xyzzy@db", "xyzzy"),
            ("postgres://db/shop?sslmode=disable&password=xyzzy", "xyzzy"),
            ("host=db password=xyzzy", "xyzzy"),
        ] {
            let message = redact_secret(format!("cannot connect to '{url}' with {secret}"), url);
            assert!(!message.contains(secret), "{message}");
        }
        for url in ["redis://:r@db", "redis://db", "orders", "a:redis@b", "palisade://a@b?secret_file=redis"] {
            assert_eq!(redact_secret("a redis error".to_owned(), url), "a redis error");
        }
    }
}
