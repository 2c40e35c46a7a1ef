//! `palisade cluster keys`: an authority, and a certificate for each node.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};

use crate::outcome::{Failure, say};

/// Makes the authority, unless it is there, and the certificates.
pub(super) fn make(directory: &Path, nodes: &[(String, String)]) -> Result<(), Failure> {
    let cannot = |what: &Path, why: &dyn std::fmt::Display| {
        Failure::IoMessage(format!("cannot use {}: {why}", what.display()))
    };
    for (name, _) in nodes {
        let taken = ["ca", "CA"].contains(&name.as_str());
        let exists = [format!("{name}.pem"), format!("{name}.key")].into_iter().map(|file| directory.join(file));
        if let Some(file) = exists.into_iter().find(|file| taken || file.exists()) {
            return Err(Failure::Misuse(format!(
                "{} exists or is the authority's; nothing was changed. Remove it first, or name another node",
                file.display()
            )));
        }
    }
    fs::DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(|why| cannot(directory, &why))?;
    let (ca, ca_key) = (directory.join("ca.pem"), directory.join("ca.key"));
    match (ca.exists(), ca_key.exists()) {
        (false, false) => {
            let key = KeyPair::generate().map_err(|why| cannot(&ca_key, &why))?;
            let certificate = authority().self_signed(&key).map_err(|why| cannot(&ca, &why))?;
            put(&ca_key, &key.serialize_pem(), 0o600)?;
            put(&ca, &certificate.pem(), 0o644)?;
            say(&format!("made an authority: {} and {}", ca.display(), ca_key.display()));
        }
        (true, true) => {}
        (true, false) => return Err(cannot(&ca_key, &"the authority's key is not there, so it can sign nothing")),
        (false, true) => return Err(cannot(&ca, &"the authority's certificate is not there, though its key is")),
    }
    let read = |file: &Path| fs::read_to_string(file).map_err(|why| cannot(file, &why));
    let key = KeyPair::from_pem(&read(&ca_key)?).map_err(|why| cannot(&ca_key, &why))?;
    let _ = read(&ca)?;
    let issuer = Issuer::new(authority(), key);
    for (name, host) in nodes {
        let (file, key_file) = (directory.join(format!("{name}.pem")), directory.join(format!("{name}.key")));
        let mut params = CertificateParams::new(vec![host.clone()]).map_err(|why| cannot(&file, &why))?;
        params.distinguished_name.push(DnType::CommonName, name.as_str());
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().map_err(|why| cannot(&key_file, &why))?;
        let certificate = params.signed_by(&key, &issuer).map_err(|why| cannot(&file, &why))?;
        put(&key_file, &key.serialize_pem(), 0o600)?;
        put(&file, &certificate.pem(), 0o644)?;
        say(&format!("made {} and {}, for host {host}", file.display(), key_file.display()));
    }
    Ok(())
}

fn authority() -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, "nodes of a Palisade cluster");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

/// Writes a new file, with these permissions from the beginning.
fn put(file: &Path, text: &str, mode: u32) -> Result<(), Failure> {
    let mut options = OpenOptions::new();
    let opened = options.write(true).create_new(true).mode(mode).open(file);
    let written = opened.and_then(|mut opened| opened.write_all(text.as_bytes()).and_then(|()| opened.sync_all()));
    written.map_err(|why| Failure::IoMessage(format!("cannot write {}: {why}", file.display())))
}
