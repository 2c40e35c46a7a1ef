//! What URLs of several engines have in common: where their secret is, and what may be shown of them.

#[cfg(any(feature = "mysql", feature = "postgres"))]
use std::ops::Range;

#[cfg(any(feature = "mysql", feature = "postgres"))]
use percent_encoding::percent_decode_str;

/// What follows a scheme without the secret in its login, and the secret. Of what is no URL, whatever might be a secret is
/// left out.
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(crate) fn split_login(rest: &str) -> (String, Option<String>) {
    if let Some(at) = secret_at(rest) {
        let secret = Some(decoded(&rest[at.clone()])).filter(|secret| !secret.is_empty());
        let mut shown = rest.to_owned();
        shown.replace_range(at.start - 1..at.end, "");
        return (shown, secret);
    }
    if rest.starts_with("//") {
        return (rest.to_owned(), None);
    }
    let first = rest.split([':', '@', '?']).next().unwrap_or("");
    (format!("{first}{}", if first.len() < rest.len() { "…" } else { "" }), None)
}

/// Where the secret is: between `:` and the last `@` of the authority.
#[cfg(any(feature = "mysql", feature = "postgres"))]
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

/// A part of a URL as it was meant.
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(crate) fn decoded(text: &str) -> String {
    percent_decode_str(text).decode_utf8_lossy().into_owned()
}

/// What follows the `//` of what is no URL, without anything that might be a secret.
#[cfg(any(feature = "redis", feature = "service"))]
pub(crate) fn blurred(place: &str) -> String {
    let Some(begin) = place.find([':', '?']) else { return place.to_owned() };
    let end = place.rfind('@').filter(|end| *end > begin).unwrap_or(place.len());
    format!("{}:…{}", &place[..begin], &place[end..])
}
