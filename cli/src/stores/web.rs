//! HTTP, with TLS from the crypto library that everything here uses.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, Response, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;

use super::{redacted, tls};
use crate::outcome::Failure;

/// For one answer.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);
/// Nothing that is fetched as a whole is longer.
const LONGEST: usize = 1 << 20;

pub(super) type HttpsClient = Client<HttpsConnector<HttpConnector>, Full<Bytes>>;

pub(super) fn client() -> Result<HttpsClient, Failure> {
    let connector = HttpsConnectorBuilder::new().with_tls_config(tls::config(None)?).https_or_http().enable_http1();
    Ok(Client::builder(TokioExecutor::new()).build(connector.build()))
}

/// The text that is found at an address.
pub(crate) async fn get(url: &str) -> Result<String, Failure> {
    let answer = ask(url, HeaderMap::new()).await?;
    match answer.status().is_success() {
        true => Ok(answer.into_body()),
        false => Err(Failure::Unavailable(format!("{}: it answers {}", redacted(url), answer.status()))),
    }
}

/// What is answered to a GET with these headers, whatever its status.
pub(crate) async fn ask(url: &str, headers: HeaderMap) -> Result<Response<String>, Failure> {
    let failed = |why: String| Failure::Unavailable(format!("{}: {why}", redacted(url)));
    // A `Uri` may have any text for its port.
    let uri: Option<Uri> = reqwest::Url::parse(url).ok().and_then(|_| url.parse().ok());
    let uri = uri.ok_or_else(|| Failure::Misuse("this is no URL; it looks like http://host:port/path".to_owned()))?;
    let unreached = |error| failed(format!("it cannot be reached: {}", error_chain(&error)));
    let fetched = async {
        let mut request = Request::get(uri).body(Full::default()).map_err(|error| failed(error.to_string()))?;
        request.headers_mut().extend(headers);
        let (parts, body) = client()?.request(request).await.map_err(unreached)?.into_parts();
        let body = Limited::new(body, LONGEST).collect().await.map_err(|error| failed(error.to_string()))?;
        let text = String::from_utf8(body.to_bytes().to_vec()).map_err(|_| failed("it is no text".to_owned()))?;
        Ok(Response::from_parts(parts, text))
    };
    let silent = |_| Err(failed(format!("no answer within {} s", PATIENCE.as_secs())));
    tokio::time::timeout(PATIENCE, fetched).await.unwrap_or_else(silent)
}

/// An error with what led to it.
fn error_chain(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(source) => format!("{error}: {}", error_chain(source)),
        None => error.to_string(),
    }
}
