//! The parts of a `mysql:` URL that are ours, and a URL without its secret.

pub(crate) use crate::engine::url::split_login as split_secret;

use crate::engine::url::decoded;

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
