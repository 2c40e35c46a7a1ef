//! An HTTP client, with the same TLS library as everything else here.

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

/// How long a server may take for a whole reply.
pub(super) const REPLY_TIMEOUT: Duration = Duration::from_secs(20);
/// The longest body, in bytes. Keys and marks are far shorter.
const MAX_BODY: usize = 1 << 20;

pub(super) type HttpsClient = Client<HttpsConnector<HttpConnector>, Full<Bytes>>;

pub(super) fn client() -> Result<HttpsClient, Failure> {
    let connector = HttpsConnectorBuilder::new().with_tls_config(tls::config(None)?).https_or_http().enable_http1();
    Ok(Client::builder(TokioExecutor::new()).build(connector.build()))
}

/// Fetches the text at a URL.
pub(crate) async fn get(url: &str) -> Result<String, Failure> {
    let answer = get_with_headers(url, HeaderMap::new()).await?;
    match answer.status().is_success() {
        true => Ok(answer.into_body()),
        false => Err(Failure::Unavailable(format!("{}: the server answered {}", redacted(url), answer.status()))),
    }
}

/// Sends a GET with these headers, and returns the response whatever its status.
pub(crate) async fn get_with_headers(url: &str, headers: HeaderMap) -> Result<Response<String>, Failure> {
    let failed = |why: String| Failure::Unavailable(format!("{}: {why}", redacted(url)));
    // `Uri` alone would accept any text as the port.
    let uri: Option<Uri> = reqwest::Url::parse(url).ok().and_then(|_| url.parse().ok());
    let uri = uri.ok_or_else(|| Failure::Misuse("this is not a URL; expected http://host:port/path".to_owned()))?;
    let unreachable = |error| failed(format!("cannot be reached: {}", error_chain(&error)));
    let response = async {
        let mut request = Request::get(uri).body(Full::default()).map_err(|error| failed(error.to_string()))?;
        request.headers_mut().extend(headers);
        let (parts, body) = client()?.request(request).await.map_err(unreachable)?.into_parts();
        let body = Limited::new(body, MAX_BODY).collect().await.map_err(|error| failed(error.to_string()))?;
        let text = String::from_utf8(body.to_bytes().to_vec())
            .map_err(|_| failed("the reply is not UTF-8 text".to_owned()))?;
        Ok(Response::from_parts(parts, text))
    };
    let timed_out = |_| Err(failed(format!("no reply within {} s", REPLY_TIMEOUT.as_secs())));
    tokio::time::timeout(REPLY_TIMEOUT, response).await.unwrap_or_else(timed_out)
}

/// Returns the messages of an error and of its causes.
fn error_chain(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(source) => format!("{error}: {}", error_chain(source)),
        None => error.to_string(),
    }
}
