//! The names in a client's certificate.
//!
//! Only what leads to a name is read. Authorities issue long serial numbers and other fields that parsers of whole
//! certificates refuse.

use der::asn1::AnyRef;
use der::{Decode, Reader, SliceReader, Tag, TagNumber, Tagged};

use super::UserFrom;

/// The object identifier 2.5.4.3 in DER.
const COMMON_NAME: &[u8] = &[6, 3, 0x55, 4, 3];
/// The object identifier 2.5.29.17 in DER.
const ALTERNATIVE_NAMES: &[u8] = &[6, 3, 0x55, 29, 17];

/// Returns the user that a certificate names. The handshake has verified it: it has version 3, and no unique ids.
pub(super) fn named(certificate: &[u8], from: UserFrom) -> Option<String> {
    let certificate = elements(AnyRef::from_der(certificate).ok()?.value())?;
    let fields = elements(certificate.first()?.value())?;
    let [_version, _serial, _algorithm, _issuer, _validity, subject, _key, extensions @ ..] = &fields[..] else {
        return None;
    };
    match from {
        UserFrom::CommonName => common_name(subject.value()),
        UserFrom::Email => alternative_name(extensions.first()?.value(), TagNumber::N1),
        UserFrom::Dns => alternative_name(extensions.first()?.value(), TagNumber::N2),
        UserFrom::Uri => alternative_name(extensions.first()?.value(), TagNumber::N6),
    }
}

fn common_name(subject: &[u8]) -> Option<String> {
    let mut names = Vec::new();
    for set in elements(subject)? {
        names.extend(
            elements(set.value())?.iter().filter_map(|attribute| attribute.value().strip_prefix(COMMON_NAME)),
        );
    }
    // Two names would be ambiguous.
    let [name] = names[..] else { return None };
    let name = AnyRef::from_der(name).ok()?;
    match name.tag() {
        Tag::Utf8String | Tag::PrintableString | Tag::Ia5String | Tag::NumericString => text(name),
        _ => None,
    }
}

/// Returns the first alternative name of a kind.
fn alternative_name(extensions: &[u8], kind: TagNumber) -> Option<String> {
    let extensions = elements(AnyRef::from_der(extensions).ok()?.value())?;
    let mut found = extensions.iter().filter_map(|extension| extension.value().strip_prefix(ALTERNATIVE_NAMES));
    let (extension, None) = (found.next()?, found.next()) else { return None };
    // The flag that the extension is critical comes before its value.
    let names = AnyRef::from_der(elements(extension)?.last()?.value()).ok()?;
    let is_of_kind = |name: &AnyRef<'_>| matches!(name.tag(), Tag::ContextSpecific { number, .. } if number == kind);
    elements(names.value())?.into_iter().filter(is_of_kind).find_map(text)
}

/// Returns the elements of a sequence or set.
fn elements(value: &[u8]) -> Option<Vec<AnyRef<'_>>> {
    let mut reader = SliceReader::new(value).ok()?;
    let mut elements = Vec::new();
    while !reader.is_finished() {
        elements.push(AnyRef::decode(&mut reader).ok()?);
    }
    Some(elements)
}

fn text(value: AnyRef<'_>) -> Option<String> {
    str::from_utf8(value.value()).ok().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    const UTF8: u8 = 12;
    const BMP: u8 = 30;
    const EMAIL: u8 = 0x81;
    const DNS: u8 = 0x82;
    const URI: u8 = 0x86;

    fn encode(tag: u8, parts: &[Vec<u8>]) -> Vec<u8> {
        let content = parts.concat();
        let length = u8::try_from(content.len()).expect("at most 255 bytes");
        let head: &[u8] = if length < 0x80 { &[tag, length] } else { &[tag, 0x81, length] };
        [head, &content].concat()
    }

    fn sequence(parts: &[Vec<u8>]) -> Vec<u8> {
        encode(0x30, parts)
    }

    /// Returns an extension with alternative names.
    fn alternative(names: &[(u8, &[u8])]) -> Vec<u8> {
        let names: Vec<_> = names.iter().map(|(tag, name)| encode(*tag, &[name.to_vec()])).collect();
        sequence(&[ALTERNATIVE_NAMES.to_vec(), vec![1, 1, 0xff], encode(4, &[sequence(&names)])])
    }

    /// Returns a certificate without a signature, with an organization and these common names in its subject.
    fn certificate(common_names: &[(u8, &[u8])], extensions: &[Vec<u8>]) -> Vec<u8> {
        let organization = encode(0x31, &[sequence(&[vec![6, 3, 0x55, 4, 10], encode(UTF8, &[b"acme".to_vec()])])]);
        let names = common_names
            .iter()
            .map(|(tag, name)| encode(0x31, &[sequence(&[COMMON_NAME.to_vec(), encode(*tag, &[name.to_vec()])])]));
        let subject: Vec<_> = [organization].into_iter().chain(names).collect();
        let (version, serial, other) = (vec![0xa0, 3, 2, 1, 2], encode(2, &[vec![0x7f; 40]]), sequence(&[]));
        let key = other.clone();
        let subject = sequence(&subject);
        let extensions = encode(0xa3, &[sequence(extensions)]);
        let fields = [version, serial, other.clone(), other.clone(), other.clone(), subject, key, extensions];
        sequence(&[sequence(&fields), other, vec![3, 1, 0]])
    }

    /// Returns the common name, the DNS name, the mail address and the URI.
    fn names(certificate: &[u8]) -> [Option<String>; 4] {
        [UserFrom::CommonName, UserFrom::Dns, UserFrom::Email, UserFrom::Uri].map(|from| named(certificate, from))
    }

    #[test]
    fn the_first_alternative_name_of_a_kind_names_the_user() {
        let other = sequence(&[vec![6, 3, 0x55, 29, 15], encode(4, &[vec![3, 2, 5, 0xa0]])]);
        let kinds: [(u8, &[u8]); 6] = [
            (0x87, &[10, 0, 0, 1]),
            (DNS, b"\xff"),
            (DNS, b"a"),
            (URI, b"b:c"),
            (DNS, b"d"),
            (EMAIL, "\u{fc}@e".as_bytes()),
        ];
        let certificate = certificate(&[(UTF8, b"alice")], &[other, alternative(&kinds)]);
        assert_eq!(names(&certificate), ["alice", "a", "\u{fc}@e", "b:c"].map(|name| Some(name.to_owned())));
        for length in 0..certificate.len() {
            assert_eq!(names(&certificate[..length]), [const { None }; 4], "the first {length} bytes");
        }
    }

    #[test]
    fn a_missing_ambiguous_or_unreadable_name_is_no_user() {
        let dns = || alternative(&[(DNS, b"a")]);
        let unclear: [&[(u8, &[u8])]; 4] =
            [&[], &[(UTF8, b"alice"), (UTF8, b"bob")], &[(BMP, b"\0a")], &[(UTF8, b"\xff")]];
        for common_names in unclear {
            assert_eq!(names(&certificate(common_names, &[])), [const { None }; 4]);
            assert_eq!(names(&certificate(common_names, &[dns()])), [None, Some("a".to_owned()), None, None]);
        }
        assert_eq!(names(&certificate(&[], &[dns(), dns()])), [const { None }; 4]);
    }
}
