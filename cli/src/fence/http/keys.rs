//! The public keys that verify signed tokens: read at the start, and again every minute.

use std::time::Duration;

use http::HeaderName;
use http::request::Parts;
use palisade_fence::http::Signatures;
use palisade_fence::signed::Verifier;

use crate::outcome::Failure;
use crate::stores::{redacted, web};

/// How often the keys are read again. The first successful read accepts a new key, and refuses a retired one.
const REFRESH_INTERVAL: Duration = Duration::from_secs(60);

/// Reads the keys from a URL or a file, and refreshes them while this process lives. The first read says which cluster issues
/// the tokens; later reads must name the same one. `user_header` is the header in which the proxy in front names the user.
pub(super) async fn signatures(source: &str, user_header: Option<&HeaderName>) -> Result<Signatures, Failure> {
    let text = read(source).await?;
    let verifier = Verifier::of_issuer(&text).map_err(|error| bad(source, &error))?;
    let cluster = verifier.cluster().to_owned();
    let signatures = Signatures::new(verifier);
    tokio::spawn(refresh(source.to_owned(), text, cluster, signatures.clone()));
    Ok(match user_header.cloned() {
        None => signatures,
        Some(name) => signatures.presented_by(move |parts: &Parts| {
            let mut values = parts.headers.get_all(&name).iter();
            // The proxy in front sets one. With two, the client may have added one, so neither counts.
            let (value, another) = (values.next()?, values.next());
            another.is_none().then(|| value.to_str().ok().map(str::to_owned))?
        }),
    })
}

async fn refresh(source: String, mut current: String, cluster: String, signatures: Signatures) {
    loop {
        tokio::time::sleep(REFRESH_INTERVAL).await;
        let text = match read(&source).await {
            Ok(text) if text == current => continue,
            Ok(text) => text,
            Err(failure) => {
                tracing::warn!("the keys stay as they are: {}", failure.message().unwrap_or_default());
                continue;
            }
        };
        match Verifier::new(&cluster, &text) {
            Ok(verifier) => {
                signatures.replace(verifier);
                current = text;
            }
            Err(error) => tracing::warn!("the keys stay as they are: {error}"),
        }
    }
}

async fn read(source: &str) -> Result<String, Failure> {
    match source.starts_with("http://") || source.starts_with("https://") {
        true => web::get(source).await,
        false => {
            let unreadable =
                |error| Failure::Misuse(format!("the keys in '{}' cannot be read: {error}", source.escape_debug()));
            std::fs::read_to_string(source).map_err(unreadable)
        }
    }
}

fn bad(source: &str, error: &dyn std::fmt::Display) -> Failure {
    let source = if source.contains("://") { redacted(source) } else { source.to_owned() };
    Failure::Misuse(format!("the keys at '{}' cannot be used: {error}", source.escape_debug()))
}
