//! The canonical spelling of paths.
//!
//! The fence and the service must find the same resource in a path. So nothing here is rewritten: a path that a URL
//! parser, a web server or a framework might read as another path is refused, and every other path is passed on byte
//! for byte.

use std::borrow::Cow;

use ::http::{Method, Uri};
use percent_encoding::percent_decode_str;

/// Characters other than letters and digits that need no encoding in a path (RFC 3986, `pchar`).
const PLAIN: &[u8] = b"-._~!$&'()*+,;=:@";

/// Refuses a request whose path could be read as another path, or could leave the service's folder. Applies to every
/// request, also to unfenced ones.
pub(super) fn check(method: &Method, uri: &Uri) -> Result<(), String> {
    if method == Method::CONNECT {
        return Err("CONNECT would open a tunnel past the fence".to_owned());
    }
    let path = uri.path();
    if !path.starts_with('/') || path.starts_with("//") {
        return Err("the path must begin with one slash".to_owned());
    }
    let is_allowed = |c: &char| c.is_ascii_alphanumeric() || *c == '/' || *c == '%' || is_plain(*c);
    if let Some(c) = path.chars().find(|c| !is_allowed(c)) {
        let encoded: String = c.to_string().bytes().map(|byte| format!("%{byte:02X}")).collect();
        let c = c.escape_debug();
        return Err(match c.to_string().as_str() {
            "\\\\" => "the path has a backslash".to_owned(),
            _ => format!("the path has '{c}', which must be written {encoded}"),
        });
    }
    if escapes(path).any(|escape| escape.is_none()) {
        return Err(
            "the path has a % without two hexadecimal digits behind it; write %25 for a percent sign".to_owned()
        );
    }
    let decoded = percent_decode_str(path).decode_utf8().map_err(|_| "the path is not UTF-8")?;
    if decoded.chars().any(char::is_control) {
        return Err("the path has a control character".to_owned());
    }
    match has_dots(&decoded) {
        true => Err("the path has a segment . or .., in one spelling or another".to_owned()),
        false => Ok(()),
    }
}

/// Returns the resource's name: the path without its first slash. Refuses any but the canonical spelling, so that two
/// names that differ are different also after decoding.
pub(super) fn name(path: &str) -> Result<&str, String> {
    let name = path.strip_prefix('/').unwrap_or(path);
    if name.is_empty() {
        return Ok("/");
    }
    if name.split('/').any(str::is_empty) {
        return Err("the path has an empty segment, or ends with a slash".to_owned());
    }
    if name.contains(';') {
        return Err("the path has parameters (;), which many services ignore".to_owned());
    }
    for (byte, digits) in escapes(name).flatten() {
        let c = char::from(byte);
        if matches!(c, '/' | '\\' | ';') {
            return Err(format!("the path has an encoded {c} (%{digits}), which could be read as a separator"));
        }
        if byte.is_ascii_alphanumeric() || is_plain(c) {
            return Err(format!("the path has %{digits}, which must be written {c}"));
        }
        if digits.bytes().any(|digit| digit.is_ascii_lowercase()) {
            return Err(format!("the path has %{digits}, which must be written %{}", digits.to_uppercase()));
        }
    }
    match escapes(&decoded_once(name)).flatten().next() {
        Some(_) => Err("the path is encoded twice".to_owned()),
        None => Ok(name),
    }
}

fn is_plain(c: char) -> bool {
    u8::try_from(c).is_ok_and(|byte| PLAIN.contains(&byte))
}

/// Decodes a percent-encoded byte, and returns it with its two digits; `None` if the encoding is invalid.
fn escapes(path: &str) -> impl Iterator<Item = Option<(u8, &str)>> {
    path.split('%').skip(1).map(|rest| {
        let digits = rest.get(..2).filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()))?;
        Some((u8::from_str_radix(digits, 16).ok()?, digits))
    })
}

/// Returns whether some reader could see a segment `.` or `..`: one that decodes twice, that takes a backslash for a slash, or
/// that drops parameters (`..;x`).
fn has_dots(decoded: &str) -> bool {
    let is_dots = |segment: &str| matches!(segment.split(';').next(), Some("." | ".."));
    let again = decoded_once(decoded);
    decoded.split(['/', '\\']).any(is_dots) || (again != decoded && has_dots(&again))
}

fn decoded_once(text: &str) -> Cow<'_, str> {
    percent_decode_str(text).decode_utf8_lossy()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn checked_name(path: &str) -> Result<String, String> {
        let uri: Uri = path.parse().map_err(|error| format!("{error}"))?;
        check(&Method::PUT, &uri).and_then(|()| name(uri.path()).map(str::to_owned))
    }

    #[test]
    fn a_path_has_one_name() {
        for (path, expected) in [
            ("/orders/42", "orders/42"),
            ("/a%20b", "a%20b"),
            ("/b%C3%BCcher", "b%C3%BCcher"),
            ("/a:b@c,d", "a:b@c,d"),
            ("/100%25", "100%25"),
            ("/...", "..."),
            ("/.hidden", ".hidden"),
            ("/", "/"),
            ("/orders/42?b=1&a=2", "orders/42"),
            ("/orders/42#part", "orders/42"),
            ("http://elsewhere/orders/42", "orders/42"),
            ("http://elsewhere", "/"),
        ] {
            assert_eq!(checked_name(path).as_deref(), Ok(expected), "{path}");
        }
    }

    #[test]
    fn another_spelling_is_refused_and_the_message_says_why() {
        for (path, why) in [
            ("//", "begin with one slash"),
            ("//host/a", "begin with one slash"),
            ("*", "begin with one slash"),
            ("/a//b", "empty segment"),
            ("/a/", "ends with a slash"),
            ("/./a", "segment . or .."),
            ("/a/..", "segment . or .."),
            ("/%2e", "segment . or .."),
            ("/a/%2E%2e/b", "segment . or .."),
            ("/a/.%2e", "segment . or .."),
            ("/a/..;x/b", "segment . or .."),
            ("/a/..%3Bx/b", "segment . or .."),
            ("/a/..%2Fb", "segment . or .."),
            ("/a/..%5Cb", "segment . or .."),
            ("/a/%252e%252E/b", "segment . or .."),
            ("/x\\..\\orders\\42", "backslash"),
            ("/orders\\42", "backslash"),
            ("/orders%5C42", "encoded \\ (%5C)"),
            ("/orders%2F42", "encoded / (%2F)"),
            ("/orders%2f42", "encoded / (%2f)"),
            ("/%61", "%61, which must be written a"),
            ("/a%2Cb", "%2C, which must be written ,"),
            ("/%c3%bc", "%c3, which must be written %C3"),
            ("/ü", "'ü', which must be written %C3%BC"),
            ("/\"", "must be written %22"),
            ("/{a}", "must be written %7B"),
            ("/a|b", "must be written %7C"),
            ("/a^b", "must be written %5E"),
            ("/a[1]", "must be written %5B"),
            ("/a;v=1", "parameters"),
            ("/a%3Bv=1", "encoded ; (%3B)"),
            ("/%", "percent sign"),
            ("/%4", "percent sign"),
            ("/%zz", "percent sign"),
            ("/%FF", "not UTF-8"),
            ("/%C0%AE%C0%AE/", "not UTF-8"),
            ("/a%00", "control character"),
            ("/a%09b", "control character"),
            ("/%2541", "encoded twice"),
        ] {
            let refused = checked_name(path).expect_err(path);
            assert!(refused.contains(why), "{path}: {refused}");
        }
        let refused = check(&Method::CONNECT, &"host:443".parse().expect("an authority"));
        assert!(refused.expect_err("CONNECT").contains("tunnel"));
    }

    /// Reads a path with all the liberties that services are known to take: decodes it until nothing changes, takes
    /// backslashes for slashes, drops parameters and empty segments, and resolves dots.
    fn as_a_service_reads_it(path: &str) -> Vec<String> {
        let mut decoded = path.to_owned();
        loop {
            let again = decoded_once(&decoded).into_owned();
            if again == decoded {
                break;
            }
            decoded = again;
        }
        let mut segments: Vec<String> = Vec::new();
        for segment in decoded.split(['/', '\\']) {
            match segment.split(';').next().unwrap_or_default() {
                "" | "." => {}
                ".." => drop(segments.pop()),
                segment => segments.push(segment.to_owned()),
            }
        }
        segments
    }

    /// Returns another spelling of the same text: each character plain, encoded, encoded twice, or with something
    /// added.
    fn spelled(text: &str, choices: &[u8]) -> String {
        let respell = |(at, c): (usize, char)| {
            let escaped = |prefix: &str, lower: bool| -> String {
                let hex = |byte: u8| if lower { format!("{byte:02x}") } else { format!("{byte:02X}") };
                c.to_string().bytes().map(|byte| format!("{prefix}{}", hex(byte))).collect()
            };
            match (choices.get(at % choices.len().max(1)).copied().unwrap_or(0), c) {
                (10, _) => escaped("%", false),
                (11, _) => escaped("%", true),
                (12, _) => escaped("%25", false),
                (13, '/') => "\\".to_owned(),
                (14, '/') => "//".to_owned(),
                (15, '/') => "/./".to_owned(),
                (16, '/') => "/x/../".to_owned(),
                (17, '/') => "/x\\..\\".to_owned(),
                (18, '/') => ";v=1/".to_owned(),
                (19, '/') => "/x/%2e%2E/".to_owned(),
                _ if c.is_ascii_alphanumeric() || c == '/' || PLAIN.contains(&(c as u8)) => c.to_string(),
                _ => escaped("%", false),
            }
        };
        text.chars().enumerate().map(respell).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 4 * ProptestConfig::default().cases, ..ProptestConfig::default() })]

        /// Two spellings of one text: if both are let in, they are the same, and so is the mark.
        #[test]
        fn two_spellings_of_one_resource_have_one_name(
            text in "(/[a-c.:, ü%\"]{1,4}){1,3}",
            one in proptest::collection::vec(0u8..20, 1..12),
            other in proptest::collection::vec(0u8..20, 1..12),
        ) {
            let (one, other) = (spelled(&text, &one), spelled(&text, &other));
            if let (Ok(first), Ok(second)) = (checked_name(&one), checked_name(&other)) {
                prop_assert_eq!(
                    as_a_service_reads_it(&one) == as_a_service_reads_it(&other), first == second,
                    "{} and {}", one, other
                );
            }
        }

        /// The same for texts that have nothing to do with each other.
        #[test]
        fn two_names_are_two_resources(one in "/[a-b./%;\\\\2eEfF5cC]{0,8}", other in "/[a-b./%;\\\\2eEfF5cC]{0,8}") {
            if let (Ok(first), Ok(second)) = (checked_name(&one), checked_name(&other)) {
                prop_assert_eq!(as_a_service_reads_it(&one) == as_a_service_reads_it(&other), first == second);
            }
        }

        /// A URL parser leaves alone what was let in, below any prefix.
        #[test]
        fn a_url_parser_changes_nothing(path in "/[ -~ü]{0,12}") {
            let Ok(uri) = path.parse::<Uri>() else { return Ok(()) };
            if check(&Method::PUT, &uri).is_ok() {
                let url = reqwest::Url::parse(&format!("http://host/app{}", uri.path())).expect("a URL");
                prop_assert_eq!(url.path(), format!("/app{}", uri.path()));
                let read = as_a_service_reads_it(&format!("/app{}", uri.path()));
                prop_assert_eq!(read.first().map(String::as_str), Some("app"), "{} leaves its folder", path);
            }
        }
    }
}
