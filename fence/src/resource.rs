//! What every adapter is.

use std::future::Future;
use std::ops::Deref;

use palisade_core::Token;

use crate::{Author, Error, Mark, Seq, Stamp};

/// Something that can be sealed, and then read and written: what an adapter implements. Cheap to clone; all clones
/// are the same resource.
///
/// Each method is **one atomic step of the resource**: the check against its mark and what it does then happen together
/// or not at all, and what is answered is durable. [`Gate`](crate::Gate) has the rules; an adapter that keeps its mark
/// elsewhere must follow the same ones, and pass the conformance functions of the test bench.
///
/// Users never call these methods: a [`Pass`] can be had from a [`Sealed`](crate::Sealed) only.
///
/// ```compile_fail,E0451
/// use palisade_fence::{Author, Pass, Resource, Seq, Stamp, Token, memory::Memory};
/// # async fn example(memory: Memory, token: Token) -> Result<(), palisade_fence::Error> {
/// let stamp = Stamp { token, seq: Seq::NONE, author: Author::default() };
/// memory.read(&Pass { stamp }, ()).await?;
/// # Ok(()) }
/// ```
pub trait Resource: Clone + Send + Sync {
    /// What is asked by a read.
    type Query: Send;
    /// What a read answers.
    type Answer: Send;
    /// What a write does.
    type Change: Send;
    /// What comes of a write. It is stored with the mark and returned again when the write is repeated.
    type Outcome: Send;

    /// What it is and where, for people: `file /var/lib/orders.json`.
    fn name(&self) -> String;

    /// Raises the mark to this token if it is not higher already ([`ErrorKind::Superseded`](crate::ErrorKind)); says
    /// what the mark is then. Sealing again with the same token changes nothing.
    fn raise(&self, token: Token) -> impl Future<Output = Result<Mark, Error>> + Send;

    /// Answers a query if the mark is at this pass's token.
    fn read(&self, pass: &Pass, query: Self::Query) -> impl Future<Output = Result<Self::Answer, Error>> + Send;

    /// Applies a change under this pass's number, and remembers its outcome; or returns the stored outcome, if this
    /// number is the last one and its author the same.
    ///
    /// Without a change the number is used up for nothing: this is how [`settle`](crate::Sealed::settle) asks what became
    /// of a write. The outcome `None` is stored for it, and returned for every repeat.
    fn write(
        &self,
        pass: &Pass,
        change: Option<Self::Change>,
    ) -> impl Future<Output = Result<Option<Self::Outcome>, Error>> + Send;
}

/// What a [`Sealed`](crate::Sealed) handle shows at the resource; nothing else can make one. It is a [`Stamp`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pass {
    stamp: Stamp,
}

impl Pass {
    pub(crate) fn new(token: Token, seq: Seq, author: Author) -> Pass {
        Pass { stamp: Stamp { token, seq, author } }
    }

    /// What it says.
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
/// `resource.seal(token)` for whoever has a token from elsewhere. One line per adapter, because no crate may say it of
/// all types at once.
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
