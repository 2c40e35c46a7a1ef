//! A request's way through the fence.

use std::future::Future;
use std::sync::Arc;

use ::http::request::Parts;
use ::http::{Method, Request, Response, header};
use bytes::Bytes;
use palisade_core::{LockName, Token};

use super::answer::{Answer, Body, BoxError, Gathered, gather};
use super::forward::NotSent;
use super::header::{BadHeader, FENCING_TOKEN, Presented, Step};
use super::layer::{Ask, Fence};
use super::marks::{Ending, Kept, MarksError, Turn};
use super::path;
use super::said::{FENCING_VERDICT, Said};
#[cfg(feature = "signed")]
use super::signatures::FENCING_SIGNATURE;
use crate::{Mark, Stamp, Verdict};

/// An answer of the fence's own, instead of the service's.
type Refusal = Box<Response<Body>>;

impl Fence {
    pub(super) async fn pass(self: Arc<Fence>, ask: Ask, request: Request<Body>) -> Response<Body> {
        self.route(ask, request).await.unwrap_or_else(|refusal| *refusal)
    }

    /// What the request is, and where it goes.
    async fn route(self: Arc<Fence>, ask: Ask, request: Request<Body>) -> Result<Response<Body>, Refusal> {
        let (mut parts, body) = request.into_parts();
        // What is upgraded leaves HTTP behind, and the fence with it.
        parts.headers.remove(header::UPGRADE);
        let malformed = |detail: &str| Said::Malformed.refuse(detail);
        path::check(&parts.method, &parts.uri).map_err(|detail| malformed(&detail))?;
        if self.scope.is_open(&parts) {
            return answered(ask, Request::from_parts(parts, body)).await;
        }
        let presented = presented(&parts).map_err(|detail| malformed(&detail))?.ok_or_else(|| no_token(&parts))?;
        let resource = self.scope.resource(&parts, presented.lock()).map_err(|detail| malformed(&detail))?;
        let is_safe = parts.method == Method::GET || parts.method == Method::HEAD;
        let header = match presented {
            Presented::Token(header) => header,
            Presented::Mark(_) if is_safe => return self.look(&resource).await,
            Presented::Mark(_) => return Err(malformed("the mark is asked for by GET or HEAD")),
        };
        #[cfg(feature = "signed")]
        self.verify(&mut parts, &resource, header.token)?;
        match header.step {
            Step::Read if is_safe => {
                self.read(&resource, header.token, answered(ask, Request::from_parts(parts, body))).await
            }
            Step::Read => Err(malformed("a write needs its number: `34; seq=1` is the first under token 34")),
            _ if is_safe => Err(malformed("a GET or HEAD has only the token, `34`")),
            Step::Seal | Step::Settle(..) if parts.method != Method::POST => {
                Err(malformed("seal and settle are POST requests"))
            }
            Step::Seal => self.seal(&resource, header.token).await,
            Step::Settle(seq, author) => self.settle(&resource, Stamp { token: header.token, seq, author }).await,
            Step::Write(seq, author) => {
                let body = self.arrived(body).await?;
                let stamp = Stamp { token: header.token, seq, author };
                self.write(resource, stamp, ask, Request::from_parts(parts, Body::full(body))).await
            }
        }
    }

    /// Refuses a token that was not given, where it must be signed. The signature is for nobody else.
    #[cfg(feature = "signed")]
    fn verify(&self, parts: &mut Parts, resource: &LockName, token: Token) -> Result<(), Refusal> {
        let Some(signatures) = &self.signatures else { return Ok(()) };
        signatures.check(parts, resource, token).map_err(|detail| Said::NotGenuine.refuse(&detail))?;
        parts.headers.remove(FENCING_SIGNATURE);
        Ok(())
    }

    /// How far a resource has come. The service is not asked.
    async fn look(&self, resource: &LockName) -> Result<Response<Body>, Refusal> {
        let mark = self.marks.peek(resource).await.map_err(|error| unavailable(&error))?;
        Ok(Said::Marked(mark).response(""))
    }

    /// The body of a write, whole: nobody waits for a slow client's turn.
    async fn arrived(&self, body: Body) -> Result<Bytes, Refusal> {
        let limits = self.limits;
        match tokio::time::timeout(limits.request_time, gather(body, limits.request_bytes)).await {
            Ok(Ok(Gathered::Whole { body, .. })) => Ok(body),
            Ok(Ok(Gathered::Longer { .. })) => {
                let detail =
                    format!("the body of a write has at most {} bytes; nothing was done", limits.request_bytes);
                Err(Said::TooLarge.refuse(&detail))
            }
            Ok(Err(error)) => Err(Said::Incomplete.refuse(&format!("the body broke off: {error}"))),
            Err(_) => {
                let detail = format!("the body did not arrive within {} ms", limits.request_time.as_millis());
                Err(Said::Incomplete.refuse(&detail))
            }
        }
    }

    /// A read: the mark is looked at before and after, so that the answer belongs to no other token's time.
    async fn read(
        &self,
        resource: &LockName,
        token: Token,
        answered: impl Future<Output = Result<Response<Body>, Refusal>>,
    ) -> Result<Response<Body>, Refusal> {
        self.admit_read(resource, token).await?;
        let mut response = answered.await?;
        self.admit_read(resource, token).await?;
        Said::Admitted.mark(response.headers_mut());
        Ok(response)
    }

    async fn admit_read(&self, resource: &LockName, token: Token) -> Result<(), Refusal> {
        let mark = self.marks.peek(resource).await.map_err(|error| unavailable(&error))?;
        let gate = Kept { mark, ..Kept::default() }.gate();
        match gate.admit_read(token).err().as_ref().and_then(Said::refused) {
            Some(said) => Err(refusal(&said, resource, token)),
            None => Ok(()),
        }
    }

    async fn seal(&self, resource: &LockName, token: Token) -> Result<Response<Body>, Refusal> {
        let mut turn = self.turn(resource).await?;
        let mut gate = turn.kept().gate();
        let is_newer = turn.kept().mark.is_none_or(|mark| mark.token < token);
        let mark = gate.seal(token);
        let mark = mark.map_err(|by| refusal(&Said::Superseded { seen: by.seen }, resource, token))?;
        if turn.kept().ending == Ending::Begun {
            if !is_newer {
                return Err(refusal(&Said::Unknown, resource, token));
            }
            if let Some(left) = turn.kept().mark.and_then(|write| self.shut_for(resource, write)) {
                return Err(refusal(&Said::shut_for(left), resource, token));
            }
        }
        if is_newer {
            let kept = Kept { mark: Some(mark), ..Kept::default() };
            turn.keep(kept).await.map_err(|error| unavailable(&error))?;
            self.doubt_ends(resource);
        }
        Ok(Said::Sealed(mark).response(""))
    }

    async fn settle(&self, resource: &LockName, stamp: Stamp) -> Result<Response<Body>, Refusal> {
        let mut turn = self.turn(resource).await?;
        if let Some(repeat) = admit(resource, turn.kept(), stamp)? {
            return Ok(repeat);
        }
        turn.keep(kept(stamp, Ending::Nothing)).await.map_err(|error| unavailable(&error))?;
        Ok(Said::Nothing.response(""))
    }

    async fn write(
        self: Arc<Fence>,
        resource: LockName,
        stamp: Stamp,
        ask: Ask,
        request: Request<Body>,
    ) -> Result<Response<Body>, Refusal> {
        let mut turn = self.turn(&resource).await?;
        if let Some(repeat) = admit(&resource, turn.kept(), stamp)? {
            return Ok(repeat);
        }
        let lost = refusal(&Said::Unknown, &resource, stamp.token);
        let carried_out = async move {
            let _writing = self.write_begins();
            let before = turn.kept().clone();
            let in_doubt = |why: String| self.in_doubt(&resource, stamp, &why);
            turn.keep(kept(stamp, Ending::Begun)).await.map_err(|error| unavailable(&error))?;
            let (mut response, answer) = match carry_out(ask, request, self.limits.answer_bytes).await {
                Ok(answered) => answered,
                Err(error) if error.is::<NotSent>() => {
                    let restored = turn.keep(before).await;
                    restored.map_err(|lost| in_doubt(format!("{error}, and the mark could not be kept: {lost}")))?;
                    return Err(not_sent(&error, &written(&resource, stamp)));
                }
                Err(error) => return Err(in_doubt(format!("the service failed: {error}"))),
            };
            let answered = turn.keep(kept(stamp, Ending::Answered(answer.into()))).await;
            answered.map_err(|error| in_doubt(format!("its answer could not be kept: {error}")))?;
            Said::Admitted.mark(response.headers_mut());
            Ok(response)
        };
        to_its_end(carried_out, lost).await
    }

    fn in_doubt(&self, resource: &LockName, stamp: Stamp, why: &str) -> Refusal {
        // The time counts from now on.
        let _ = self.shut_for(resource, Mark { token: stamp.token, seq: stamp.seq });
        Said::Unknown.refuse(&format!("{}: {why}", written(resource, stamp)))
    }

    async fn turn(&self, resource: &LockName) -> Result<Box<dyn Turn>, Refusal> {
        self.marks.turn(resource).await.map_err(|error| unavailable(&error))
    }
}

/// Goes on whether somebody waits for it or not: a write that was begun is not left half done because its client has
/// gone away. A service that panics leaves nothing but doubt.
async fn to_its_end(
    work: impl Future<Output = Result<Response<Body>, Refusal>> + Send + 'static,
    lost: Refusal,
) -> Result<Response<Body>, Refusal> {
    tokio::spawn(work).await.unwrap_or(Err(lost))
}

/// What the service answers, as it is passed on and as it is kept.
async fn carry_out(ask: Ask, request: Request<Body>, limit: usize) -> Result<(Response<Body>, Answer), BoxError> {
    let (parts, body) = ask(request).await?.into_parts();
    let gathered = gather(body, limit).await?;
    let answer = Answer::of(parts.status, &parts.headers, &gathered);
    Ok((Response::from_parts(parts, gathered.body()), answer))
}

/// What the service answers to what is not numbered.
async fn answered(ask: Ask, request: Request<Body>) -> Result<Response<Body>, Refusal> {
    let what = format!("{} {}", request.method(), request.uri().path());
    let mut response = ask(request).await.map_err(|error| match error.is::<NotSent>() {
        true => not_sent(&error, &what),
        false => Said::Failed.refuse(&format!("{what}: the service failed: {error}")),
    })?;
    response.headers_mut().remove(FENCING_VERDICT);
    Ok(response)
}

/// The header; `None` if there is none.
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

/// Judges a write; an answer, if it was made before.
fn admit(resource: &LockName, kept: &Kept, stamp: Stamp) -> Result<Option<Response<Body>>, Refusal> {
    let verdict = kept.gate().admit(stamp);
    if let Some(said @ (Said::Stale { .. } | Said::NotSealed)) = Said::refused(&verdict) {
        return Err(refusal(&said, resource, stamp.token));
    }
    match (verdict, &kept.ending) {
        (_, Ending::Begun) => Err(refusal(&Said::Unknown, resource, stamp.token)),
        (Verdict::Admitted, _) => Ok(None),
        (Verdict::Duplicate(_), Ending::Answered(answer)) => {
            let mut response = answer.repeat();
            Said::Repeated { has_body: answer.is_whole() }.mark(response.headers_mut());
            Ok(Some(response))
        }
        (Verdict::Duplicate(_), Ending::Nothing) => Ok(Some(Said::Nothing.response(""))),
        (verdict, _) => {
            let said = Said::refused(&verdict).unwrap_or(Said::Malformed);
            Err(refusal(&said, resource, stamp.token))
        }
    }
}

fn kept(stamp: Stamp, ending: Ending) -> Kept {
    Kept { mark: Some(Mark { token: stamp.token, seq: stamp.seq }), author: stamp.author, ending }
}

fn refusal(said: &Said, resource: &LockName, token: Token) -> Refusal {
    let because = match said {
        Said::Stale { seen } | Said::Superseded { seen } => format!("token {seen} has sealed it"),
        Said::NotSealed => "this token has not sealed it".to_owned(),
        Said::Gap { expected } => format!("the next write under it has number {expected}"),
        Said::Shut { seconds } => format!("it is shut for {seconds} s more"),
        _ => "nobody knows whether the last write under this token was carried out".to_owned(),
    };
    said.refuse(&format!("token {token} on '{resource}': {because}"))
}

fn no_token(parts: &Parts) -> Refusal {
    Said::Missing.refuse(&format!("{} {} needs a fencing token", parts.method, parts.uri.path()))
}

fn written(resource: &LockName, stamp: Stamp) -> String {
    let Stamp { token, seq, .. } = stamp;
    format!("write {seq} on '{resource}' under token {token}")
}

fn not_sent(error: &BoxError, what: &str) -> Refusal {
    Said::NotSent.refuse(&format!("{what}: {error}"))
}

fn unavailable(error: &MarksError) -> Refusal {
    Said::Unavailable.refuse(&error.to_string())
}
