//! The interface between locks and fences: a lock seals a resource before its holder reads.

use std::error::Error as StdError;
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::Token;

/// A resource that can refuse older tokens. Only the sealed resource, [`Seal::Sealed`], can be read and written.
///
/// A tuple `(&a, &b)` or a `Vec` of resources is a resource too. Its parts are sealed concurrently, and the call returns
/// either all of them or an error.
pub trait Seal {
    /// The sealed resource, which can be read and written.
    type Sealed: Send;

    /// Durably raises the resource's mark to this token, before anything is read under it.
    ///
    /// # Cancellation
    ///
    /// The mark may have been raised. Sealing again with the same token is no error.
    ///
    /// # Errors
    ///
    /// A newer token has sealed it, or it could not be reached.
    fn seal(&self, token: Token) -> impl Future<Output = Result<Self::Sealed, SealError>> + Send;
}

/// A resource that could not be sealed. Nothing was read or written; its mark may have been raised.
#[derive(Debug)]
pub struct SealError {
    /// The resource's name.
    pub resource: String,
    /// The newer token that has sealed it, if that is the cause.
    pub superseded_by: Option<Token>,
    /// Whether a retry may succeed without a change from outside.
    pub is_retryable: bool,
    /// The cause.
    pub source: Box<dyn StdError + Send + Sync>,
}

impl fmt::Display for SealError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.source.fmt(f)
    }
}

impl StdError for SealError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.source()
    }
}

impl<S: Seal + Sync> Seal for &S {
    type Sealed = S::Sealed;

    fn seal(&self, token: Token) -> impl Future<Output = Result<S::Sealed, SealError>> + Send {
        S::seal(self, token)
    }
}

impl<S: Seal> Seal for Vec<S> {
    type Sealed = Vec<S::Sealed>;

    fn seal(&self, token: Token) -> impl Future<Output = Result<Vec<S::Sealed>, SealError>> + Send {
        let mut parts: Vec<_> = self.iter().map(|resource| Part::Running(Box::pin(resource.seal(token)))).collect();
        poll_fn(move |context| {
            let mut is_done = true;
            for part in &mut parts {
                match part.poll(context) {
                    Ok(done) => is_done &= done,
                    Err(error) => return Poll::Ready(Err(error)),
                }
            }
            if !is_done {
                return Poll::Pending;
            }
            Poll::Ready(Ok(parts.iter_mut().filter_map(Part::take).collect()))
        })
    }
}

/// One of several resources that are being sealed.
enum Part<F, T> {
    Running(Pin<Box<F>>),
    Sealed(Option<T>),
}

impl<F: Future<Output = Result<T, SealError>>, T> Part<F, T> {
    /// Polls the part and returns whether it is done.
    fn poll(&mut self, context: &mut Context<'_>) -> Result<bool, SealError> {
        if let Part::Running(future) = self {
            match future.as_mut().poll(context) {
                Poll::Pending => return Ok(false),
                Poll::Ready(sealed) => *self = Part::Sealed(Some(sealed?)),
            }
        }
        Ok(true)
    }

    fn take(&mut self) -> Option<T> {
        match self {
            Part::Running(_) => None,
            Part::Sealed(sealed) => sealed.take(),
        }
    }
}

macro_rules! tuples {
    ($(($($name:ident $part:ident),+);)*) => {$(
        impl<$($name: Seal),+> Seal for ($($name,)+) {
            type Sealed = ($($name::Sealed,)+);

            fn seal(&self, token: Token) -> impl Future<Output = Result<Self::Sealed, SealError>> + Send {
                let ($($part,)+) = self;
                $(let mut $part = Part::Running(Box::pin($part.seal(token)));)+
                poll_fn(move |context| {
                    let mut is_done = true;
                    $(match $part.poll(context) {
                        Ok(done) => is_done &= done,
                        Err(error) => return Poll::Ready(Err(error)),
                    })+
                    if !is_done {
                        return Poll::Pending;
                    }
                    match ($($part.take(),)+) {
                        ($(Some($part),)+) => Poll::Ready(Ok(($($part,)+))),
                        // Polled again after it was ready.
                        _ => Poll::Pending,
                    }
                })
            }
        }
    )*};
}

tuples! {
    (A a);
    (A a, B b);
    (A a, B b, C c);
    (A a, B b, C c, D d);
}
