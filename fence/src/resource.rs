//! The trait of all adapters.

use std::future::Future;
use std::ops::Deref;

use palisade_core::Token;

use crate::{Author, Error, Mark, Seq, Stamp};

/// Something that can be sealed, and then read and written: what an adapter implements. Cheap to clone; all clones
/// are the same resource.
///
/// Each method is **one atomic step of the resource**: the check against its mark and what it does then happen together
/// or not at all, and what is answered is durable. [`FenceState`](crate::FenceState) has the rules; an adapter that keeps its mark
/// elsewhere must follow the same ones, and pass the conformance functions of the test bench.
///
/// Only a [`Sealed`](crate::Sealed) handle can call these methods, because only it can create a [`Pass`].
///
/// ```compile_fail,E0451
/// use palisade_fence::{Author, Pass, Resource, Seq, Stamp, Token, memory::Memory};
/// # async fn example(memory: Memory, token: Token) -> Result<(), palisade_fence::Error> {
/// let stamp = Stamp { token, seq: Seq::NONE, author: Author::default() };
/// memory.read(&Pass { stamp }, ()).await?;
/// # Ok(()) }
/// ```
pub trait Resource: Clone + Send + Sync {
    /// The query of a read.
    type Query: Send;
    /// The result of a read.
    type Answer: Send;
    /// The change of a write.
    type Change: Send;
    /// The result of a write. It is stored with the mark and returned again when the write is repeated.
    type Outcome: Send;

    /// Returns its kind and address, for messages: `file /var/lib/orders.json`.
    fn name(&self) -> String;

    /// Raises the mark to this token, unless it is higher ([`ErrorKind::Superseded`](crate::ErrorKind)), and returns the
    /// mark. Sealing again with the same token changes nothing.
    fn raise(&self, token: Token) -> impl Future<Output = Result<Mark, Error>> + Send;

    /// Answers a query if the mark is at this pass's token.
    fn read(&self, pass: &Pass, query: Self::Query) -> impl Future<Output = Result<Self::Answer, Error>> + Send;

    /// Applies a change under this pass's number, and remembers its outcome; or returns the stored outcome, if this
    /// number is the last one and its author the same.
    ///
    /// Without a change the number is used up without a write: this is how [`settle`](crate::Sealed::settle) finds out the
    /// outcome of a write. The outcome `None` is stored for it, and returned for every repeat.
    fn write(
        &self,
        pass: &Pass,
        change: Option<Self::Change>,
    ) -> impl Future<Output = Result<Option<Self::Outcome>, Error>> + Send;
}

/// A [`Stamp`] that only a [`Sealed`](crate::Sealed) handle can create.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pass {
    stamp: Stamp,
}

impl Pass {
    pub(crate) fn new(token: Token, seq: Seq, author: Author) -> Pass {
        Pass { stamp: Stamp { token, seq, author } }
    }

    /// Returns its stamp.
    pub fn stamp(&self) -> Stamp {
        self.stamp
    }
}

impl Deref for Pass {
    type Target = Stamp;
    fn deref(&self) -> &Stamp {
        &self.stamp
    }
}

/// Lets a lock seal resources of this type: `palisade.lock("orders/42").seal(&resource).acquire()`, and
/// `resource.seal(token)` for a token from elsewhere. One line per adapter, because the orphan rule forbids a blanket
/// implementation.
#[macro_export]
macro_rules! sealable {
    ($resource:ty) => {
        impl $crate::Seal for $resource {
            type Sealed = $crate::Sealed<$resource>;

            async fn seal(&self, token: $crate::Token) -> Result<$crate::Sealed<$resource>, $crate::SealError> {
                Ok($crate::Sealed::seal(self.clone(), token).await?)
            }
        }
    };
}
