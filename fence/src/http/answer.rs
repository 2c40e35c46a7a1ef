//! Stored answers, and bodies in memory.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use ::http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header};
use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::BodyExt;
use http_body_util::combinators::UnsyncBoxBody;
use serde::{Deserialize, Serialize};
use tokio::time::{Sleep, sleep};

/// The error of a body.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The body of a request to a fenced service, or of its answer.
#[derive(Debug)]
pub struct Body(UnsyncBoxBody<Bytes, BoxError>);

impl Body {
    pub(super) fn new<B>(body: B) -> Body
    where
        B: HttpBody<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
    {
        Body(body.map_err(Into::into).boxed_unsync())
    }

    /// Fails the body if a part of it takes longer than this.
    pub(super) fn within(self, time: Duration) -> Body {
        Body::new(Timed { body: self, time, overdue: None })
    }

    /// Returns a body of these bytes.
    pub(super) fn full(body: impl Into<Bytes>) -> Body {
        Body::new(http_body_util::Full::new(body.into()))
    }
}

impl HttpBody for Body {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        Pin::new(&mut self.0).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.0.size_hint()
    }
}

/// A body whose parts must arrive in time.
struct Timed {
    body: Body,
    time: Duration,
    /// The time limit of the part that is awaited.
    overdue: Option<Pin<Box<Sleep>>>,
}

impl HttpBody for Timed {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        if let Poll::Ready(frame) = Pin::new(&mut this.body).poll_frame(context) {
            this.overdue = None;
            return Poll::Ready(frame);
        }
        let overdue = this.overdue.get_or_insert_with(|| Box::pin(sleep(this.time)));
        overdue.as_mut().poll(context).map(|()| {
            let what = format!("the next part of the body did not come within {} ms", this.time.as_millis());
            Some(Err(what.into()))
        })
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The headers that are stored with an answer. Cookies are not: another client may get the repeated answer.
const STORED_HEADERS: [HeaderName; 7] = [
    header::CONTENT_TYPE,
    header::CONTENT_ENCODING,
    header::CONTENT_LANGUAGE,
    header::ETAG,
    header::LAST_MODIFIED,
    header::LOCATION,
    header::RETRY_AFTER,
];

/// The headers of gRPC that are stored. They come as trailers.
const STORED_GRPC_HEADERS: [&str; 3] = ["grpc-status", "grpc-message", "grpc-status-details-bin"];

/// The service's answer to a write, as it is stored with the mark: status, the headers that describe the body, the
/// body if it was short enough, and trailers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    status: u16,
    headers: Vec<(String, Vec<u8>)>,
    body: Option<Bytes>,
    trailers: Vec<(String, Vec<u8>)>,
}

impl Answer {
    pub(super) fn of(status: StatusCode, headers: &HeaderMap, gathered: &Gathered) -> Answer {
        let (body, trailers) = match gathered {
            Gathered::Whole { body, trailers } => (Some(body.clone()), trailers.as_ref().map(stored_headers)),
            Gathered::Longer { .. } => (None, None),
        };
        Answer {
            status: status.as_u16(),
            headers: stored_headers(headers),
            body,
            trailers: trailers.unwrap_or_default(),
        }
    }

    /// Returns whether its body was short enough to be stored.
    pub(super) fn is_whole(&self) -> bool {
        self.body.is_some()
    }

    /// Returns the stored answer again.
    pub(super) fn repeat(&self) -> Response<Body> {
        let mut frames = VecDeque::new();
        frames.extend(self.body.clone().filter(|body| !body.is_empty()).map(Frame::data));
        if !self.trailers.is_empty() {
            frames.push_back(Frame::trailers(headers(&self.trailers)));
        }
        let mut response = Response::new(Body::new(BufferedBody { frames, rest: None }));
        // This code stores no other status.
        *response.status_mut() = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        *response.headers_mut() = headers(&self.headers);
        response
    }
}

/// Selects the headers that are stored.
fn stored_headers(headers: &HeaderMap) -> Vec<(String, Vec<u8>)> {
    let is_stored = |name: &HeaderName| STORED_HEADERS.contains(name) || STORED_GRPC_HEADERS.contains(&name.as_str());
    let headers = headers.iter().filter(|(name, _)| is_stored(name));
    headers.map(|(name, value)| (name.to_string(), value.as_bytes().to_vec())).collect()
}

/// Selects the headers that a repeated answer has too.
pub(super) fn repeatable_headers(all: &HeaderMap) -> HeaderMap {
    headers(&stored_headers(all))
}

fn headers(stored: &[(String, Vec<u8>)]) -> HeaderMap {
    let valid = |(name, value): &(String, Vec<u8>)| {
        Some((HeaderName::try_from(name).ok()?, HeaderValue::from_bytes(value).ok()?))
    };
    stored.iter().filter_map(valid).collect()
}

/// A body as far as it was read.
pub(super) enum Gathered {
    /// The whole body.
    Whole { body: Bytes, trailers: Option<HeaderMap> },
    /// A body that is longer than the limit, read up to there.
    Longer { frames: VecDeque<Frame<Bytes>>, rest: Body },
}

impl Gathered {
    /// Returns the body from its beginning.
    pub(super) fn body(self) -> Body {
        match self {
            Gathered::Whole { body, trailers } => {
                let mut frames: VecDeque<_> =
                    Some(body).filter(|body| !body.is_empty()).map(Frame::data).into_iter().collect();
                frames.extend(trailers.map(Frame::trailers));
                Body::new(BufferedBody { frames, rest: None })
            }
            Gathered::Longer { frames, rest } => Body::new(BufferedBody { frames, rest: Some(rest) }),
        }
    }
}

/// Reads a body to its end, or until it has more bytes than this.
pub(super) async fn gather(mut body: Body, limit: usize) -> Result<Gathered, BoxError> {
    let (mut frames, mut length, mut trailers) = (VecDeque::new(), 0, None);
    while let Some(frame) = body.frame().await {
        match frame?.into_data() {
            Ok(data) => {
                length += data.len();
                frames.push_back(data);
            }
            Err(frame) => trailers = frame.into_trailers().ok(),
        }
        if length > limit {
            let frames = frames.into_iter().map(Frame::data).collect();
            return Ok(Gathered::Longer { frames, rest: body });
        }
    }
    let body = match frames.len() {
        1 => frames.pop_front().unwrap_or_default(),
        _ => frames.iter().flat_map(|data| data.iter().copied()).collect(),
    };
    Ok(Gathered::Whole { body, trailers })
}

/// A body whose beginning, or all of it, is in memory.
struct BufferedBody {
    frames: VecDeque<Frame<Bytes>>,
    rest: Option<Body>,
}

impl HttpBody for BufferedBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match (self.frames.pop_front(), &mut self.rest) {
            (Some(frame), _) => Poll::Ready(Some(Ok(frame))),
            (None, Some(rest)) => Pin::new(rest).poll_frame(context),
            (None, None) => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.frames.is_empty() && self.rest.as_ref().is_none_or(HttpBody::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let held: usize = self.frames.iter().filter_map(|frame| frame.data_ref()).map(Bytes::len).sum();
        let mut hint = self.rest.as_ref().map_or_else(|| SizeHint::with_exact(0), HttpBody::size_hint);
        let held = held as u64;
        if let Some(upper) = hint.upper() {
            hint.set_upper(upper + held);
        }
        hint.set_lower(hint.lower() + held);
        hint
    }
}
