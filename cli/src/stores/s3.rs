//! Objects in S3 and compatible stores: `s3://BUCKET/PATH`, with credentials and endpoint in the variables `AWS_…`.

use std::sync::Arc;

use http_body_util::{BodyExt, Full};
use object_store::aws::AmazonS3Builder;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpResponseBody, HttpService,
};
use object_store::{ClientOptions, ObjectStore, RetryConfig};

use super::web::{self, HttpsClient, REPLY_TIMEOUT};
use crate::outcome::Failure;

/// How often a request is retried after a network error.
const RETRIES: usize = 3;

/// Opens the bucket of a URL such as `s3://bucket/a/b`. Returns it and the path, which may be empty.
pub(crate) fn open(url: &str) -> Result<(Arc<dyn ObjectStore>, String), Failure> {
    let rest = url.strip_prefix("s3://").unwrap_or_default();
    let (bucket, path) = rest.split_once('/').unwrap_or((rest, ""));
    if bucket.is_empty() || bucket.contains(['@', ':', '?', '#']) {
        let message = "expected s3://bucket/path; keys, region and endpoint are in the variables AWS_ACCESS_KEY_ID, \
                    AWS_SECRET_ACCESS_KEY, AWS_REGION, AWS_ENDPOINT_URL";
        return Err(Failure::Misuse(message.to_owned()));
    }
    let retry = RetryConfig { max_retries: RETRIES, retry_timeout: REPLY_TIMEOUT, ..RetryConfig::default() };
    let store = AmazonS3Builder::from_env().with_bucket_name(bucket).with_retry(retry);
    let store = store.with_allow_http(true).with_http_connector(HttpConnections(web::client()?)).build();
    let store = store.map_err(|error| Failure::Misuse(format!("s3://{bucket}: {error}")))?;
    Ok((Arc::new(store), path.to_owned()))
}

/// The HTTP client of [`web`], for `object_store`.
#[derive(Debug, Clone)]
struct HttpConnections(HttpsClient);

impl HttpConnector for HttpConnections {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(self.clone()))
    }
}

#[async_trait::async_trait]
impl HttpService for HttpConnections {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let (parts, body) = request.into_parts();
        let body = body.collect().await?.to_bytes();
        let request = http::Request::from_parts(parts, Full::new(body));
        let reply = async {
            let failed = |error: hyper_util::client::legacy::Error| {
                let kind = if error.is_connect() { HttpErrorKind::Connect } else { HttpErrorKind::Interrupted };
                HttpError::new(kind, error)
            };
            let (parts, body) = self.0.request(request).await.map_err(failed)?.into_parts();
            let body = body.collect().await.map_err(|error| HttpError::new(HttpErrorKind::Interrupted, error))?;
            Ok(HttpResponse::from_parts(parts, HttpResponseBody::from(body.to_bytes())))
        };
        let timed_out = |error| Err(HttpError::new(HttpErrorKind::Timeout, error));
        tokio::time::timeout(REPLY_TIMEOUT, reply).await.unwrap_or_else(timed_out)
    }
}
