//! The parts of a `mysql:` URL that are ours, and a URL without its secret.

use std::ops::Range;

/// Where the secret is in what follows the scheme: between `:` and the last `@` of the authority.
fn secret_at(rest: &str) -> Option<Range<usize>> {
    let place = rest.strip_prefix("//")?;
    let end = place.find(['/', '?', '#']).unwrap_or(place.len());
    let at = match place[..end].rfind('@') {
        Some(at) => at,
        // A secret may have characters that should have been encoded.
        None => place.split('?').next()?.rfind('@')?,
    };
    let colon = place[..at].find(':')?;
    Some(colon + 3..at + 2)
}

/// The same without the secret, and the secret.
pub(crate) fn split_secret(rest: &str) -> (String, Option<String>) {
    if let Some(at) = secret_at(rest) {
        let secret = Some(decoded(&rest[at.clone()])).filter(|secret| !secret.is_empty());
        let mut shown = rest.to_owned();
        shown.replace_range(at.start - 1..at.end, "");
        return (shown, secret);
    }
    if rest.starts_with("//") {
        return (rest.to_owned(), None);
    }
    // Of what is no URL, whatever might be a secret is left out.
    let first = rest.split([':', '@', '?']).next().unwrap_or("");
    (format!("{first}{}", if first.len() < rest.len() { "…" } else { "" }), None)
}

/// The options of a URL, taken out of it, decoded.
pub(super) fn take_options(url: &mut String) -> Vec<(String, String)> {
    let Some((place, query)) = url.split_once('?') else { return Vec::new() };
    let options = query.split('&').filter(|option| !option.is_empty()).map(|option| {
        let (name, value) = option.split_once('=').unwrap_or((option, ""));
        (decoded(name), decoded(value))
    });
    let options = options.collect();
    *url = place.to_owned();
    options
}

fn decoded(text: &str) -> String {
    percent_encoding::percent_decode_str(text).decode_utf8_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_without_its_secret_leads_to_the_same_place() {
        for (url, without, secret) in [
            ("//host/db", "//host/db", None),
            ("//me@host/db", "//me@host/db", None),
            ("//me:xyzzy@host:3306/db?ssl-mode=required", "//me@host:3306/db?ssl-mode=required", Some("xyzzy")),
            ("//me:xy%2Fzzy@host/db", "//me@host/db", Some("xy/zzy")),
            ("//me:xy@zzy@host/db", "//me@host/db", Some("xy@zzy")),
            ("//me:xy/zzy@host", "//me@host", Some("xy/zzy")),
        ] {
            assert_eq!(split_secret(url), (without.to_owned(), secret.map(str::to_owned)), "{url}");
        }
        assert_eq!(split_secret("me:xyzzy@host").0, "me…");
    }

    #[test]
    fn options_are_taken_out() {
        let mut url = "mysql://host/db?ssl-ca=/a%20b&x".to_owned();
        assert_eq!(
            take_options(&mut url),
            [("ssl-ca".to_owned(), "/a b".to_owned()), ("x".to_owned(), String::new())]
        );
        assert_eq!(url, "mysql://host/db");
    }
}
