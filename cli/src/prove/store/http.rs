//! A number behind HTTP. The ratchet is in front of the service, and so is the fence; see [`service`](super::service).

use palisade::Token;
use palisade_fence::http::{Api, Call, FENCING_TOKEN, Reply};
use reqwest::{Client, Method, StatusCode};

use super::{NumberAdapter, SealedNumber, Store, StoreError, StoreFuture, ratchet_refusal, seal};
use crate::outcome::Failure;
use crate::prove::scheme::Scheme;
use crate::stores::redacted;

pub(super) struct Numbers {
    client: Client,
    /// Where the service of the experiment is.
    front: String,
    /// The user's service behind it, if one was named.
    behind: Option<String>,
    name: String,
}

impl Numbers {
    pub(super) fn open(url: &str, name: &str) -> Result<Numbers, Failure> {
        let (front, behind) = match url.split_once('#') {
            Some((front, behind)) => (front.to_owned(), Some(behind.to_owned())),
            None => (url.to_owned(), None),
        };
        let client = Client::builder().no_proxy().build();
        let client = client.map_err(|error| Failure::Unavailable(format!("no HTTP here: {error}")))?;
        Ok(Numbers { client, front, behind, name: name.to_owned() })
    }

    fn url(&self, way: &str) -> String {
        format!("{}/{way}/{}", self.front, self.name)
    }

    async fn put(&self, way: &str, token: &str, number: u64) -> Result<StatusCode, StoreError> {
        let request = self.client.put(self.url(way)).header(FENCING_TOKEN, token).body(number.to_string());
        let unsure = |error: reqwest::Error| StoreError::Unsure(format!("the service: {}", error.without_url()));
        Ok(request.send().await.map_err(unsure)?.status())
    }
}

fn failed(error: reqwest::Error) -> StoreError {
    StoreError::Failed(format!("the service: {}", error.without_url()))
}

fn done(status: StatusCode) -> Result<(), StoreError> {
    match status.is_success() {
        true => Ok(()),
        false => Err(StoreError::Failed(format!("the service answers {status}; it must keep what is PUT, for GET"))),
    }
}

impl Store for Numbers {
    fn describe(&self) -> String {
        match &self.behind {
            Some(url) => format!("an HTTP service, {}", redacted(url)),
            None => "an HTTP service".to_owned(),
        }
    }

    fn make(&self, _: Scheme) -> StoreFuture<'_, ()> {
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
            done(answer.status())?;
            let text = answer.text().await.map_err(failed)?;
            text.trim().parse().map_err(|_| StoreError::Failed("what the service answers is no number".to_owned()))
        })
    }

    fn write(&self, number: u64) -> StoreFuture<'_, ()> {
        Box::pin(async move { done(self.put("none", "", number).await?) })
    }

    fn ratchet(&self, token: Token, number: u64) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            match self.put("ratchet", &token.to_string(), number).await? {
                StatusCode::PRECONDITION_FAILED => Err(ratchet_refusal(token)),
                status => done(status),
            }
        })
    }

    fn seal(&self, token: Token) -> StoreFuture<'_, Box<dyn SealedNumber>> {
        Box::pin(async move {
            let api = Api::new(self.client.clone(), &self.url("strict"))?.for_lock(&self.name)?;
            seal(api, Body, token).await
        })
    }
}

/// The number is all that is said.
struct Body;

impl NumberAdapter for Body {
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
