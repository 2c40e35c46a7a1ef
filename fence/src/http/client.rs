//! The client's side: a fenced service as a resource.

use std::fmt;

use ::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use bytes::Bytes;
use palisade_core::{BadName, LockName, Token};
use reqwest::{Client, Url};

use super::answer::repeatable_headers;
use super::header::{FENCING_TOKEN, FencingToken, Presented, Step};
use super::verdict::FencingVerdict;
use crate::{Error, ErrorKind, Mark, Pass, Resource, Sealed, Stamp};

/// An HTTP service behind a [`FenceLayer`](super::FenceLayer) or the proxy. Requests can be made once it is sealed.
///
/// ```no_run
/// use palisade_fence::{Seal, Token, http::Api};
/// # async fn example(token: Token) -> Result<(), Box<dyn std::error::Error>> {
/// let orders = Api::new(reqwest::Client::new(), "http://orders.internal:8080")?.for_lock("orders")?;
/// let mut orders = orders.seal(token).await?;          // or: palisade.lock("orders").seal(&orders).acquire()
/// let list = orders.get("/orders").await?;
/// let added = orders.post("/orders", r#"{"item":"rope"}"#).await?;
/// assert_eq!(added.status, 201);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Api {
    client: Client,
    base: Url,
    lock: Option<LockName>,
    signature: Option<HeaderValue>,
}

impl Api {
    /// Returns the service at this address. Paths are appended to it; the seal is sent to the address itself. The
    /// client decides time-outs and TLS.
    ///
    /// # Errors
    ///
    /// It is no address of an HTTP service.
    pub fn new(client: Client, address: &str) -> Result<Api, Error> {
        let misuse = |what: String| Error::new(ErrorKind::misuse(what), "http service", "use");
        let base = Url::parse(address)
            .map_err(|error| misuse(format!("'{}' is no URL: {error}", address.escape_debug())))?;
        let is_plain = base.query().is_none() && base.fragment().is_none() && base.host().is_some();
        if !["http", "https"].contains(&base.scheme()) || !is_plain {
            let shown = shown(&base);
            return Err(misuse(format!("'{shown}' is not like http://host:port/path, without query or fragment")));
        }
        Ok(Api { client, base, lock: None, signature: None })
    }

    /// Names the lock in every request. A service that another lock protects then refuses.
    ///
    /// # Errors
    ///
    /// It is no name of a lock.
    pub fn for_lock(self, name: &str) -> Result<Api, Error> {
        let misuse = |error: BadName| Error::new(ErrorKind::misuse(error.to_string()), self.name(), "use");
        let lock = LockName::new(name).map_err(misuse)?;
        Ok(Api { lock: Some(lock), ..self })
    }

    /// Sends this signature with every token, for a fence that [requires signed tokens](super::FenceLayer). It is the
    /// result of `guard.signed_token()`. Seal with the token that it signs.
    ///
    /// # Errors
    ///
    /// It is no signature.
    pub fn signed(self, signature: &str) -> Result<Api, Error> {
        let misuse = |_| Error::new(ErrorKind::misuse("this is no signature"), self.name(), "use");
        let mut signature = HeaderValue::from_str(signature).map_err(misuse)?;
        signature.set_sensitive(true);
        Ok(Api { signature: Some(signature), ..self })
    }

    /// Reads the mark of this path's resource; `None` if it was never sealed. Needs no token, and the request does not reach
    /// the service.
    ///
    /// # Errors
    ///
    /// The fence cannot be reached, or there is none; another lock than this one protects the service.
    pub async fn mark(&self, path: &str) -> Result<Option<Mark>, Error> {
        let presented = Presented::Mark(self.lock.clone());
        let kind = match self.exchange(&presented, Call::new(Method::GET, path, "")).await {
            Ok((FencingVerdict::Marked(mark), _)) => return Ok(mark),
            Ok((verdict, reply)) => refused(&verdict, &reply, "read the mark of"),
            Err(kind) => kind,
        };
        Err(Error::new(kind, self.name(), "read the mark of"))
    }

    fn url(&self, path: &str) -> Result<Url, ErrorKind> {
        let base = self.base.as_str();
        let base = if path.is_empty() { base } else { base.trim_end_matches('/') };
        let is_path = path.is_empty() || path.starts_with(['/', '?']);
        let url = if is_path { Url::parse(&format!("{base}{path}")).ok() } else { None };
        url.ok_or_else(|| ErrorKind::misuse(format!("'{}' is no path: it begins with '/'", path.escape_debug())))
    }

    /// Sends a request, and returns the verdict and the reply.
    async fn send(&self, token: Token, step: Step, call: Call) -> Result<(FencingVerdict, Reply), ErrorKind> {
        self.exchange(&Presented::Token(FencingToken { token, lock: self.lock.clone(), step }), call).await
    }

    async fn exchange(&self, presented: &Presented, call: Call) -> Result<(FencingVerdict, Reply), ErrorKind> {
        let header = presented.to_string();
        let mut request = self.client.request(call.method, self.url(&call.path)?);
        request = request.headers(call.headers).header(FENCING_TOKEN, header).body(call.body);
        if let Some(signature) = &self.signature {
            request = request.header("fencing-signature", signature);
        }
        let request = request.build().map_err(|error| ErrorKind::misuse(error.to_string()))?;
        let response = self.client.execute(request).await.map_err(|error| match error.is_connect() {
            true => ErrorKind::unreached("the service cannot be reached", error.without_url()),
            false => ErrorKind::unknown("the service did not answer", error.without_url()),
        })?;
        let (status, headers) = (response.status(), response.headers().clone());
        let Some(verdict) = FencingVerdict::find(&headers) else {
            let what =
                format!("the answer ({status}) does not come from a fence: is there one in front of the service?");
            return Err(ErrorKind::Unavailable {
                what,
                may_have_taken_effect: true,
                is_retryable: false,
                source: None,
            });
        };
        let body = response.bytes().await;
        let body = body.map_err(|error| ErrorKind::unknown("the answer broke off", error.without_url()))?;
        let is_whole = verdict != FencingVerdict::Repeated { has_body: false };
        Ok((verdict, Reply { status, headers, body, is_whole }))
    }

    fn error(&self, kind: ErrorKind, operation: &'static str, token: Token) -> Error {
        Error::new(kind, self.name(), operation).under(token)
    }
}

/// Returns the address without its user and password.
fn shown(url: &Url) -> String {
    let mut url = url.clone();
    // A URL without a host has no user and no password.
    let _ = url.set_username("").and_then(|()| url.set_password(None));
    url.to_string()
}

impl fmt::Debug for Api {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Api").field("name", &self.name()).field("lock", &self.lock).finish_non_exhaustive()
    }
}

/// A request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// Its method.
    pub method: Method,
    /// The path below the service's address: empty, or with a slash in front.
    pub path: String,
    /// Its headers, without that of the fence.
    pub headers: HeaderMap,
    /// Its body.
    pub body: Bytes,
}

impl Call {
    /// Returns a request without headers.
    pub fn new(method: Method, path: &str, body: impl Into<Bytes>) -> Call {
        Call { method, path: path.to_owned(), headers: HeaderMap::new(), body: body.into() }
    }

    /// Adds a header.
    #[must_use]
    pub fn header(mut self, name: HeaderName, value: HeaderValue) -> Call {
        self.headers.append(name, value);
        self
    }
}

/// The service's reply, with any status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    /// Its status. A failure of the service itself is an answer like any other.
    pub status: StatusCode,
    /// Its headers. A write's answer has only those that the fence stores, so that a repeated answer is the same.
    pub headers: HeaderMap,
    /// Its body.
    pub body: Bytes,
    /// Whether the body is whole. It is not in a repeated answer that was too long to be kept.
    pub is_whole: bool,
}

impl Resource for Api {
    /// GET or HEAD.
    type Query = Call;
    type Answer = Reply;
    /// Anything else.
    type Change = Call;
    type Outcome = Reply;

    fn name(&self) -> String {
        format!("http service {}", shown(&self.base))
    }

    async fn raise(&self, token: Token) -> Result<Mark, Error> {
        let call = Call::new(Method::POST, "", "");
        let kind = match self.send(token, Step::Seal, call).await {
            Ok((FencingVerdict::Sealed(mark), _)) if mark.token == token => return Ok(mark),
            Ok((verdict, reply)) => refused(&verdict, &reply, "seal"),
            Err(kind) => kind,
        };
        Err(self.error(kind, "seal", token))
    }

    async fn read(&self, pass: &Pass, query: Call) -> Result<Reply, Error> {
        if ![Method::GET, Method::HEAD].contains(&query.method) {
            let kind = ErrorKind::misuse(format!("{} is no way to read: use GET or HEAD, or write", query.method));
            return Err(self.error(kind, "read", pass.token));
        }
        let kind = match self.send(pass.token, Step::Read, query).await {
            Ok((FencingVerdict::Admitted, reply)) => return Ok(reply),
            Ok((verdict, reply)) => refused(&verdict, &reply, "read"),
            Err(kind) => kind,
        };
        Err(self.error(kind, "read", pass.token))
    }

    async fn write(&self, pass: &Pass, change: Option<Call>) -> Result<Option<Reply>, Error> {
        let Stamp { token, seq, author } = pass.stamp();
        let safe = [Method::GET, Method::HEAD, Method::OPTIONS];
        let (step, call) = match change {
            None => (Step::Settle(seq, author), Call::new(Method::POST, "", "")),
            Some(call) if safe.contains(&call.method) => {
                let kind = ErrorKind::misuse(format!("{} is no way to write", call.method));
                return Err(self.error(kind, "write", token));
            }
            Some(call) => (Step::Write(seq, author), call),
        };
        let kind = match self.send(token, step, call).await {
            Ok((FencingVerdict::Nothing, _)) => return Ok(None),
            Ok((FencingVerdict::Admitted | FencingVerdict::Repeated { .. }, reply)) => {
                return Ok(Some(Reply { headers: repeatable_headers(&reply.headers), ..reply }));
            }
            Ok((verdict, reply)) => refused(&verdict, &reply, "write"),
            Err(kind) => kind,
        };
        Err(self.error(kind, "write", token))
    }
}

crate::sealable!(Api);

/// Maps a fence's refusal.
fn refused(verdict: &FencingVerdict, reply: &Reply, operation: &str) -> ErrorKind {
    let detail = || detail(&reply.body).unwrap_or_else(|| format!("the fence says '{verdict}'"));
    let unavailable = |may_have_taken_effect, is_retryable| ErrorKind::Unavailable {
        what: detail(),
        may_have_taken_effect,
        is_retryable,
        source: None,
    };
    match verdict {
        FencingVerdict::Superseded { seen } => ErrorKind::Superseded { seen: *seen },
        FencingVerdict::Stale { seen } => ErrorKind::Stale { seen: *seen },
        FencingVerdict::NotSealed => ErrorKind::NotSealed,
        FencingVerdict::Gap { expected } => ErrorKind::Gap { expected: *expected },
        FencingVerdict::Unknown => unavailable(true, false),
        FencingVerdict::Missing | FencingVerdict::Malformed | FencingVerdict::NotGenuine => {
            ErrorKind::misuse(detail())
        }
        // The handle then settles the number, in case a copy of the request arrives later.
        FencingVerdict::TooLarge => ErrorKind::Rejected { what: detail(), source: None },
        _ => unavailable(operation == "write", true),
    }
}

/// Escapes control characters in a text of the fence. Quotes are harmless and stay.
fn plain(text: &str) -> String {
    text.chars().flat_map(|c| if c == '\'' || c == '"' { vec![c] } else { c.escape_debug().collect() }).collect()
}

/// Reads the text of a problem.
fn detail(body: &[u8]) -> Option<String> {
    let problem: serde_json::Value = serde_json::from_slice(body).ok()?;
    let text = |name: &str| Some(plain(problem.get(name)?.as_str()?));
    Some(format!("{}; {}", text("title")?, text("detail")?))
}

impl Sealed<Api> {
    /// Reads.
    ///
    /// # Errors
    ///
    /// As [`Sealed::read`]. An answer of the service is no error, whatever its status.
    pub async fn get(&self, path: &str) -> Result<Reply, Error> {
        self.read(Call::new(Method::GET, path, "")).await
    }

    /// Writes with POST.
    ///
    /// # Errors
    ///
    /// As [`Sealed::write`]. An answer of the service is no error, whatever its status.
    pub async fn post(&mut self, path: &str, body: impl Into<Bytes>) -> Result<Reply, Error> {
        self.write(Call::new(Method::POST, path, body)).await
    }

    /// Writes with PUT.
    ///
    /// # Errors
    ///
    /// As [`Sealed::write`]. An answer of the service is no error, whatever its status.
    pub async fn put(&mut self, path: &str, body: impl Into<Bytes>) -> Result<Reply, Error> {
        self.write(Call::new(Method::PUT, path, body)).await
    }

    /// Writes with DELETE.
    ///
    /// # Errors
    ///
    /// As [`Sealed::write`]. An answer of the service is no error, whatever its status.
    pub async fn delete(&mut self, path: &str) -> Result<Reply, Error> {
        self.write(Call::new(Method::DELETE, path, "")).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_quoted_with_control_characters_escaped() {
        let body = br#"{"title":"Not known","detail":"write 1 on 'orders' under token 34\u001b[2J"}"#;
        assert_eq!(detail(body).as_deref(), Some(r"Not known; write 1 on 'orders' under token 34\u{1b}[2J"));
    }
}
