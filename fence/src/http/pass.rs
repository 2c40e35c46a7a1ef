//! Checks a request and passes it to the service, or answers it.

use std::future::Future;
use std::sync::Arc;

use ::http::request::Parts;
use ::http::{Method, Request, Response, header};
use bytes::Bytes;
use palisade_core::{LockName, Token};

use super::answer::{Answer, Body, BoxError, Gathered, gather};
use super::forward::NotSent;
use super::header::{BadHeader, FENCING_TOKEN, Presented, Step};
use super::layer::{CallService, Fence};
use super::marks::{MarkLock, MarkRecord, MarksError, WriteState};
use super::path;
#[cfg(feature = "signed")]
use super::signatures::FENCING_SIGNATURE;
use super::verdict::{FENCING_VERDICT, FencingVerdict};
use crate::{Mark, Stamp, Verdict};

/// The fence's answer instead of the service's.
type Refusal = Box<Response<Body>>;

impl Fence {
    pub(super) async fn pass(self: Arc<Fence>, call: CallService, request: Request<Body>) -> Response<Body> {
        self.route(call, request).await.unwrap_or_else(|refusal| *refusal)
    }

    /// Parses the request and dispatches it.
    async fn route(self: Arc<Fence>, call: CallService, request: Request<Body>) -> Result<Response<Body>, Refusal> {
        let (mut parts, body) = request.into_parts();
        // An upgraded connection would bypass the fence.
        parts.headers.remove(header::UPGRADE);
        let malformed = |detail: &str| FencingVerdict::Malformed.refuse(detail);
        path::check(&parts.method, &parts.uri).map_err(|detail| malformed(&detail))?;
        if self.scope.is_open(&parts) {
            return answered(call, Request::from_parts(parts, body)).await;
        }
        let presented = presented(&parts).map_err(|detail| malformed(&detail))?.ok_or_else(|| no_token(&parts))?;
        let resource = self.scope.resource(&parts, presented.lock()).map_err(|detail| malformed(&detail))?;
        let is_safe = parts.method == Method::GET || parts.method == Method::HEAD;
        let header = match presented {
            Presented::Token(header) => header,
            Presented::Mark(_) if is_safe => return self.read_mark(&resource).await,
            Presented::Mark(_) => return Err(malformed("the mark is asked for by GET or HEAD")),
        };
        #[cfg(feature = "signed")]
        self.verify(&mut parts, &resource, header.token)?;
        match header.step {
            Step::Read if is_safe => {
                self.read(&resource, header.token, answered(call, Request::from_parts(parts, body))).await
            }
            Step::Read => Err(malformed("a write needs its number: `34; seq=1` is the first under token 34")),
            _ if is_safe => Err(malformed("a GET or HEAD has only the token, `34`")),
            Step::Seal | Step::Settle(..) if parts.method != Method::POST => {
                Err(malformed("seal and settle are POST requests"))
            }
            Step::Seal => self.seal(&resource, header.token).await,
            Step::Settle(seq, author) => self.settle(&resource, Stamp { token: header.token, seq, author }).await,
            Step::Write(seq, author) => {
                let body = self.read_body(body).await?;
                let stamp = Stamp { token: header.token, seq, author };
                self.write(resource, stamp, call, Request::from_parts(parts, Body::full(body))).await
            }
        }
    }

    /// Refuses a token without a valid signature, where tokens must be signed. Removes the signature, which the service must
    /// not see.
    #[cfg(feature = "signed")]
    fn verify(&self, parts: &mut Parts, resource: &LockName, token: Token) -> Result<(), Refusal> {
        let Some(signatures) = &self.signatures else { return Ok(()) };
        signatures.check(parts, resource, token).map_err(|detail| FencingVerdict::NotGenuine.refuse(&detail))?;
        parts.headers.remove(FENCING_SIGNATURE);
        Ok(())
    }

    /// Returns a resource's mark. The request does not reach the service.
    async fn read_mark(&self, resource: &LockName) -> Result<Response<Body>, Refusal> {
        let mark = self.marks.peek(resource).await.map_err(|error| unavailable(&error))?;
        Ok(FencingVerdict::Marked(mark).response(""))
    }

    /// Reads the whole body of a write before the lock is taken, so that a slow client does not hold the lock.
    async fn read_body(&self, body: Body) -> Result<Bytes, Refusal> {
        let limits = self.limits;
        match tokio::time::timeout(limits.request_time, gather(body, limits.request_bytes)).await {
            Ok(Ok(Gathered::Whole { body, .. })) => Ok(body),
            Ok(Ok(Gathered::Longer { .. })) => {
                let detail =
                    format!("the body of a write has at most {} bytes; nothing was done", limits.request_bytes);
                Err(FencingVerdict::TooLarge.refuse(&detail))
            }
            Ok(Err(error)) => Err(FencingVerdict::Incomplete.refuse(&format!("the body broke off: {error}"))),
            Err(_) => {
                let detail = format!("the body did not arrive within {} ms", limits.request_time.as_millis());
                Err(FencingVerdict::Incomplete.refuse(&detail))
            }
        }
    }

    /// Passes a read on. Checks the mark before and after, because a newer token may seal the resource meanwhile.
    async fn read(
        &self,
        resource: &LockName,
        token: Token,
        answered: impl Future<Output = Result<Response<Body>, Refusal>>,
    ) -> Result<Response<Body>, Refusal> {
        self.admit_read(resource, token).await?;
        let mut response = answered.await?;
        self.admit_read(resource, token).await?;
        FencingVerdict::Admitted.set_header(response.headers_mut());
        Ok(response)
    }

    async fn admit_read(&self, resource: &LockName, token: Token) -> Result<(), Refusal> {
        let mark = self.marks.peek(resource).await.map_err(|error| unavailable(&error))?;
        let state = MarkRecord { mark, ..MarkRecord::default() }.state();
        match state.admit_read(token).err().as_ref().and_then(FencingVerdict::refused) {
            Some(verdict) => Err(refusal(&verdict, resource, token)),
            None => Ok(()),
        }
    }

    async fn seal(&self, resource: &LockName, token: Token) -> Result<Response<Body>, Refusal> {
        let mut lock = self.lock(resource).await?;
        let mut state = lock.record().state();
        let is_newer = lock.record().mark.is_none_or(|mark| mark.token < token);
        let mark = state.seal(token);
        let mark = mark.map_err(|by| refusal(&FencingVerdict::Superseded { seen: by.seen }, resource, token))?;
        if lock.record().last_write == WriteState::Begun {
            if !is_newer {
                return Err(refusal(&FencingVerdict::Unknown, resource, token));
            }
            if let Some(left) = lock.record().mark.and_then(|write| self.quarantine_left(resource, write)) {
                return Err(refusal(&FencingVerdict::quarantined_for(left), resource, token));
            }
        }
        if is_newer {
            let record = MarkRecord { mark: Some(mark), ..MarkRecord::default() };
            lock.save(record).await.map_err(|error| unavailable(&error))?;
            self.end_quarantine(resource);
        }
        Ok(FencingVerdict::Sealed(mark).response(""))
    }

    async fn settle(&self, resource: &LockName, stamp: Stamp) -> Result<Response<Body>, Refusal> {
        let mut lock = self.lock(resource).await?;
        if let Some(repeat) = admit(resource, lock.record(), stamp)? {
            return Ok(repeat);
        }
        lock.save(record(stamp, WriteState::Nothing)).await.map_err(|error| unavailable(&error))?;
        Ok(FencingVerdict::Nothing.response(""))
    }

    async fn write(
        self: Arc<Fence>,
        resource: LockName,
        stamp: Stamp,
        call: CallService,
        request: Request<Body>,
    ) -> Result<Response<Body>, Refusal> {
        let mut lock = self.lock(&resource).await?;
        if let Some(repeat) = admit(&resource, lock.record(), stamp)? {
            return Ok(repeat);
        }
        let unknown = refusal(&FencingVerdict::Unknown, &resource, stamp.token);
        let carried_out = async move {
            let _running = self.begin_write();
            let before = lock.record().clone();
            let unknown_outcome = |why: String| self.unknown_outcome(&resource, stamp, &why);
            lock.save(record(stamp, WriteState::Begun)).await.map_err(|error| unavailable(&error))?;
            let (mut response, answer) = match carry_out(call, request, self.limits.answer_bytes).await {
                Ok(answered) => answered,
                Err(error) if error.is::<NotSent>() => {
                    let restored = lock.save(before).await;
                    restored
                        .map_err(|why| unknown_outcome(format!("{error}, and the mark could not be kept: {why}")))?;
                    return Err(not_sent(&error, &describe_write(&resource, stamp)));
                }
                Err(error) => return Err(unknown_outcome(format!("the service failed: {error}"))),
            };
            let answered = lock.save(record(stamp, WriteState::Answered(answer.into()))).await;
            answered.map_err(|error| unknown_outcome(format!("its answer could not be kept: {error}")))?;
            FencingVerdict::Admitted.set_header(response.headers_mut());
            Ok(response)
        };
        run_to_completion(carried_out, unknown).await
    }

    fn unknown_outcome(&self, resource: &LockName, stamp: Stamp, why: &str) -> Refusal {
        // Starts the quarantine.
        let _ = self.quarantine_left(resource, Mark { token: stamp.token, seq: stamp.seq });
        FencingVerdict::Unknown.refuse(&format!("{}: {why}", describe_write(resource, stamp)))
    }

    async fn lock(&self, resource: &LockName) -> Result<Box<dyn MarkLock>, Refusal> {
        self.marks.lock(resource).await.map_err(|error| unavailable(&error))
    }
}

/// Runs a write as a task, so that it is completed when its client disconnects. If the service panics, the outcome is
/// unknown.
async fn run_to_completion(
    work: impl Future<Output = Result<Response<Body>, Refusal>> + Send + 'static,
    unknown: Refusal,
) -> Result<Response<Body>, Refusal> {
    tokio::spawn(work).await.unwrap_or(Err(unknown))
}

/// Calls the service, and returns its answer in two forms: to pass on, and to store.
async fn carry_out(
    call: CallService,
    request: Request<Body>,
    limit: usize,
) -> Result<(Response<Body>, Answer), BoxError> {
    let (parts, body) = call(request).await?.into_parts();
    let gathered = gather(body, limit).await?;
    let answer = Answer::of(parts.status, &parts.headers, &gathered);
    Ok((Response::from_parts(parts, gathered.body()), answer))
}

/// Calls the service with a request that has no number.
async fn answered(call: CallService, request: Request<Body>) -> Result<Response<Body>, Refusal> {
    let what = format!("{} {}", request.method(), request.uri().path());
    let mut response = call(request).await.map_err(|error| match error.is::<NotSent>() {
        true => not_sent(&error, &what),
        false => FencingVerdict::Failed.refuse(&format!("{what}: the service failed: {error}")),
    })?;
    response.headers_mut().remove(FENCING_VERDICT);
    Ok(response)
}

/// Parses the header; `None` if there is none.
fn presented(parts: &Parts) -> Result<Option<Presented>, String> {
    let mut values = parts.headers.get_all(FENCING_TOKEN).iter();
    match (values.next(), values.next()) {
        (None, _) => Ok(None),
        (Some(_), Some(_)) => Err("there are two of them".to_owned()),
        (Some(value), None) => {
            let text = value.to_str().map_err(|_| "it is not ASCII".to_owned())?;
            text.parse().map(Some).map_err(|error: BadHeader| error.to_string())
        }
    }
}

/// Checks a write. Returns the stored answer of a repeat, and `None` for a new write.
fn admit(resource: &LockName, record: &MarkRecord, stamp: Stamp) -> Result<Option<Response<Body>>, Refusal> {
    let verdict = record.state().admit(stamp);
    if let Some(verdict @ (FencingVerdict::Stale { .. } | FencingVerdict::NotSealed)) =
        FencingVerdict::refused(&verdict)
    {
        return Err(refusal(&verdict, resource, stamp.token));
    }
    match (verdict, &record.last_write) {
        (_, WriteState::Begun) => Err(refusal(&FencingVerdict::Unknown, resource, stamp.token)),
        (Verdict::Admitted, _) => Ok(None),
        (Verdict::Duplicate(_), WriteState::Answered(answer)) => {
            let mut response = answer.repeat();
            FencingVerdict::Repeated { has_body: answer.is_whole() }.set_header(response.headers_mut());
            Ok(Some(response))
        }
        (Verdict::Duplicate(_), WriteState::Nothing) => Ok(Some(FencingVerdict::Nothing.response(""))),
        (verdict, _) => {
            let verdict = FencingVerdict::refused(&verdict).unwrap_or(FencingVerdict::Malformed);
            Err(refusal(&verdict, resource, stamp.token))
        }
    }
}

fn record(stamp: Stamp, last_write: WriteState) -> MarkRecord {
    MarkRecord { mark: Some(Mark { token: stamp.token, seq: stamp.seq }), author: stamp.author, last_write }
}

fn refusal(verdict: &FencingVerdict, resource: &LockName, token: Token) -> Refusal {
    let because = match verdict {
        FencingVerdict::Stale { seen } | FencingVerdict::Superseded { seen } => format!("token {seen} has sealed it"),
        FencingVerdict::NotSealed => "this token has not sealed it".to_owned(),
        FencingVerdict::Gap { expected } => format!("the next write under it has number {expected}"),
        FencingVerdict::Quarantined { seconds } => format!("it is quarantined for {seconds} s more"),
        _ => "it is unknown whether the last write under this token was carried out".to_owned(),
    };
    verdict.refuse(&format!("token {token} on '{resource}': {because}"))
}

fn no_token(parts: &Parts) -> Refusal {
    FencingVerdict::Missing.refuse(&format!("{} {} needs a fencing token", parts.method, parts.uri.path()))
}

fn describe_write(resource: &LockName, stamp: Stamp) -> String {
    let Stamp { token, seq, .. } = stamp;
    format!("write {seq} on '{resource}' under token {token}")
}

fn not_sent(error: &BoxError, what: &str) -> Refusal {
    FencingVerdict::NotSent.refuse(&format!("{what}: {error}"))
}

fn unavailable(error: &MarksError) -> Refusal {
    FencingVerdict::Unavailable.refuse(&error.to_string())
}
