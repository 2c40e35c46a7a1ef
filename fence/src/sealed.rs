//! Sealed resources.

use std::fmt;

use palisade_core::Token;

use crate::{Author, Error, ErrorKind, Pass, Resource, Seq};

/// A resource that was sealed with a token: it refuses older tokens. Only a sealed resource can be read and written.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), palisade_fence::Error> {
/// use palisade_fence::{Sealed, Token, memory::Memory};
/// let orders = Memory::new("orders");
/// let token = Token::new(34).expect("a guard's token()");
/// let mut orders = Sealed::seal(orders, token).await?;
/// let mut text = orders.read(()).await?;
/// text.extend_from_slice(b"one more");
/// orders.write(text).await?;
/// # Ok(()) }
/// ```
///
/// A resource that is not sealed can neither be read nor written:
///
/// ```compile_fail,E0599
/// # async fn example() -> Result<(), palisade_fence::Error> {
/// let orders = palisade_fence::memory::Memory::new("orders");
/// orders.write(b"more".to_vec()).await?;
/// # Ok(()) }
/// ```
///
/// and only sealing makes it sealed:
///
/// ```compile_fail,E0451
/// use palisade_fence::{Author, Sealed, Seq, Token, memory::Memory};
/// let token = Token::new(34).expect("a token");
/// let (resource, last, author, is_settled) = (Memory::new("orders"), Seq::NONE, Author::default(), true);
/// let orders = Sealed { resource, token, last, author, is_settled };
/// ```
#[must_use = "it was sealed for something"]
pub struct Sealed<R> {
    resource: R,
    token: Token,
    /// The last number that is used up.
    last: Seq,
    author: Author,
    /// Whether the outcome of every write through this handle is known.
    is_settled: bool,
}

/// The outcome of a write whose answer was lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Settled<O> {
    /// No write had an unknown outcome.
    Nothing,
    /// It was applied, with this outcome.
    Applied(O),
    /// It was not applied, and never will be, however late it arrives.
    NeverApplied,
}

impl<R: Resource> Sealed<R> {
    /// Seals a resource with a token, before anything is read under it.
    ///
    /// # Cancellation
    ///
    /// The mark may have been raised. Sealing again with the same token is no error.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Superseded`]: a higher token has sealed it: a newer holder has the lock, or the engine of this
    /// token counts lower. The resource cannot be reached.
    pub async fn seal(resource: R, token: Token) -> Result<Sealed<R>, Error> {
        let mark = resource.raise(token).await?;
        Ok(Sealed { resource, token, last: mark.seq, author: Author::unique(), is_settled: true })
    }

    /// Returns the token that it was sealed with.
    pub fn token(&self) -> Token {
        self.token
    }

    /// Returns the resource.
    pub fn resource(&self) -> &R {
        &self.resource
    }

    /// Returns whether the outcome of every write through this handle is known.
    pub fn is_settled(&self) -> bool {
        self.is_settled
    }

    /// Reads, unless a newer token has sealed the resource.
    ///
    /// # Cancellation
    ///
    /// Nothing happens.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Stale`]: a newer token has sealed it. [`ErrorKind::Unsettled`]: see [`settle`](Sealed::settle). The
    /// resource cannot be reached.
    pub async fn read(&self, query: R::Query) -> Result<R::Answer, Error> {
        self.check("read")?;
        self.resource.read(&Pass::new(self.token, self.last, self.author), query).await
    }

    /// Writes, unless a newer token has sealed the resource. Applied once, however often it is delivered.
    ///
    /// # Cancellation
    ///
    /// It may have been applied: [`settle`](Sealed::settle) finds out.
    ///
    /// # On connection loss
    ///
    /// The error says whether it may have been applied. If so, every further access is refused as
    /// [`ErrorKind::Unsettled`] until [`settle`](Sealed::settle) has found out.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Stale`]: a newer token has sealed it, and nothing was written. (If something on the way repeats requests, such
    /// as an HTTP proxy, a first copy may have been applied before that seal. The new holder has read it then.)
    /// [`ErrorKind::Rejected`]: the resource does not accept the change. The resource cannot be reached.
    pub async fn write(&mut self, change: R::Change) -> Result<R::Outcome, Error> {
        self.check("write")?;
        self.is_settled = false;
        let error = match self.send(Some(change)).await {
            Ok(Some(outcome)) => return Ok(outcome),
            // Only a number that this handle has settled has no outcome, and it is never used again.
            Ok(None) => return Err(self.error(ErrorKind::Gap { expected: self.last.next() }, "write")),
            Err(error) => error,
        };
        match error.kind() {
            // It was never sent, or is always refused: nothing of it can arrive later.
            ErrorKind::Unavailable { may_have_taken_effect: false, .. } | ErrorKind::Misuse { .. } => {
                self.is_settled = true;
            }
            ErrorKind::Stale { .. } | ErrorKind::NotSealed | ErrorKind::Gap { .. } => self.is_settled = true,
            // A copy of it that is still on its way could be accepted later: its number must not be used again.
            ErrorKind::Rejected { .. } => {
                if let Settled::Applied(outcome) = self.settle().await? {
                    return Ok(outcome);
                }
            }
            _ => {}
        }
        Err(error)
    }

    /// Finds out the outcome of a write whose answer was lost, by using up its number without a write. If the number is free,
    /// the write has not arrived and never will be applied. If it is taken, the write was applied. Can be repeated.
    ///
    /// # Cancellation
    ///
    /// Call it again.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Stale`]: a newer token has sealed the resource. Whether the write was applied before that is for
    /// the new holder to read; it is not applied later. The resource cannot be reached: call it again.
    pub async fn settle(&mut self) -> Result<Settled<R::Outcome>, Error> {
        if self.is_settled {
            return Ok(Settled::Nothing);
        }
        match self.send(None).await? {
            Some(outcome) => Ok(Settled::Applied(outcome)),
            None => Ok(Settled::NeverApplied),
        }
    }

    /// Sends the next number. It is used up once the resource has answered.
    async fn send(&mut self, change: Option<R::Change>) -> Result<Option<R::Outcome>, Error> {
        let seq = self.last.next();
        let outcome = self.resource.write(&Pass::new(self.token, seq, self.author), change).await?;
        (self.last, self.is_settled) = (seq, true);
        Ok(outcome)
    }

    fn check(&self, operation: &'static str) -> Result<(), Error> {
        match self.is_settled {
            true => Ok(()),
            false => Err(self.error(ErrorKind::Unsettled, operation)),
        }
    }

    fn error(&self, kind: ErrorKind, operation: &'static str) -> Error {
        Error::new(kind, self.resource.name(), operation).under(self.token)
    }
}

impl<R: Resource> fmt::Debug for Sealed<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut fields = f.debug_struct("Sealed");
        fields.field("resource", &self.resource.name()).field("token", &self.token);
        fields.field("last", &self.last).field("is_settled", &self.is_settled).finish()
    }
}
