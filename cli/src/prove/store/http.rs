//! A number in an HTTP service. The ratchet and the fence are in front of it: see [`service`](super::service).

use palisade::Token;
use palisade_fence::http::{Api, Call, FENCING_TOKEN, Reply};
use reqwest::{Client, Method, StatusCode};

use super::{CounterAdapter, SealedCounter, Store, StoreError, StoreFuture, ratchet_refusal, seal};
use crate::outcome::Failure;
use crate::prove::fencing::Fencing;
use crate::stores::redacted;

pub(super) struct Counter {
    client: Client,
    /// The base URL of the experiment's service.
    base_url: String,
    /// The user's service behind it, if one was named.
    upstream: Option<String>,
    name: String,
}

impl Counter {
    pub(super) fn open(url: &str, name: &str) -> Result<Counter, Failure> {
        // `service::start` appends the upstream as a fragment.
        let (base_url, upstream) = match url.split_once('#') {
            Some((base_url, upstream)) => (base_url.to_owned(), Some(upstream.to_owned())),
            None => (url.to_owned(), None),
        };
        let client = Client::builder().no_proxy().build();
        let client = client.map_err(|error| Failure::Unavailable(format!("cannot make an HTTP client: {error}")))?;
        Ok(Counter { client, base_url, upstream, name: name.to_owned() })
    }

    fn url(&self, route: &str) -> String {
        format!("{}/{route}/{}", self.base_url, self.name)
    }

    async fn put(&self, route: &str, token: &str, number: u64) -> Result<StatusCode, StoreError> {
        let request = self.client.put(self.url(route)).header(FENCING_TOKEN, token).body(number.to_string());
        let unknown_outcome =
            |error: reqwest::Error| StoreError::UnknownOutcome(format!("the service: {}", error.without_url()));
        Ok(request.send().await.map_err(unknown_outcome)?.status())
    }
}

fn failed(error: reqwest::Error) -> StoreError {
    StoreError::Failed(format!("the service: {}", error.without_url()))
}

fn check_status(status: StatusCode) -> Result<(), StoreError> {
    match status.is_success() {
        true => Ok(()),
        false => Err(StoreError::Failed(format!("the service answers {status}; it must return on GET what was PUT"))),
    }
}

impl Store for Counter {
    fn describe(&self) -> String {
        match &self.upstream {
            Some(url) => format!("an HTTP service, {}", redacted(url)),
            None => "an HTTP service".to_owned(),
        }
    }

    fn create_data(&self, _: Fencing) -> StoreFuture<'_, ()> {
        self.write(0)
    }

    fn remove(&self) -> StoreFuture<'_, ()> {
        Box::pin(async {
            // A user's service may not support it.
            self.client.delete(self.url("none")).send().await.map(|_| ()).map_err(failed)
        })
    }

    fn read(&self) -> StoreFuture<'_, u64> {
        Box::pin(async {
            let answer = self.client.get(self.url("none")).send().await.map_err(failed)?;
            check_status(answer.status())?;
            let text = answer.text().await.map_err(failed)?;
            text.trim().parse().map_err(|_| StoreError::Failed("the service did not answer with a number".to_owned()))
        })
    }

    fn write(&self, number: u64) -> StoreFuture<'_, ()> {
        Box::pin(async move { check_status(self.put("none", "", number).await?) })
    }

    fn ratchet(&self, token: Token, number: u64) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            match self.put("ratchet", &token.to_string(), number).await? {
                StatusCode::PRECONDITION_FAILED => Err(ratchet_refusal(token)),
                status => check_status(status),
            }
        })
    }

    fn seal(&self, token: Token) -> StoreFuture<'_, Box<dyn SealedCounter>> {
        Box::pin(async move {
            let api = Api::new(self.client.clone(), &self.url("strict"))?.for_lock(&self.name)?;
            seal(api, Body, token).await
        })
    }
}

/// A body that is the number.
struct Body;

impl CounterAdapter for Body {
    type Resource = Api;

    fn query(&self) -> Call {
        Call::new(Method::GET, "", "")
    }

    fn number(&self, answer: Reply) -> Option<u64> {
        str::from_utf8(&answer.body).ok()?.trim().parse().ok()
    }

    fn change(&self, number: u64) -> Call {
        Call::new(Method::PUT, "", number.to_string())
    }
}
