//! Both halves at once: the lock, and the resources that it protects.

use std::ops::Deref;
use std::time::Duration;

use futures_util::future::{Either, select};
use palisade_core::Seal;

use crate::guard::{Guard, Leadership, LockGuard, WriteGuard};
use crate::lock::Request;
use crate::{Error, ErrorKind};

/// What one holder has alone: only that can seal. Of several holders the newest would shut out the others.
pub trait Exclusive: From<Guard> + Deref<Target = Guard> {}

impl Exclusive for LockGuard {}
impl Exclusive for WriteGuard {}
/// Observers see a leader before its resources are sealed: leading does not mean that it may write yet.
impl Exclusive for Leadership {}

/// A request that is not sent yet, for a lock together with the resources that it seals.
#[must_use = "nothing is acquired until it is asked for"]
pub struct SealingRequest<G, S> {
    request: Request<G>,
    resources: S,
}

impl<G: Exclusive> Request<G> {
    /// Seals these resources with the grant's token before there is a guard: whatever an older holder still sends them
    /// is refused from then on, and nothing can be read or written under the lock that is not sealed. One resource, a
    /// tuple of several, or a `Vec`; `palisade-fence` has them.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::sync::Mutex;
    /// # #[derive(Default)] struct Orders(Mutex<Option<palisade::Token>>);
    /// # impl palisade::Seal for Orders {
    /// #     type Sealed = palisade::Token;
    /// #     async fn seal(&self, token: palisade::Token) -> Result<palisade::Token, palisade::SealError> {
    /// #         *self.0.lock().expect("not poisoned") = Some(token);
    /// #         Ok(token)
    /// #     }
    /// # }
    /// # let (orders, stock) = (Orders::default(), Orders::default());
    /// let palisade = palisade::connect("memory:").await?;
    /// let (guard, (orders, stock)) = palisade.lock("orders/42").seal((&orders, &stock)).acquire().await?;
    /// // … read and write `orders` and `stock`
    /// guard.release().await?;
    /// # Ok(()) }
    /// ```
    ///
    /// A lock that only saves work has no token, and seals nothing:
    ///
    /// ```compile_fail,E0599
    /// # async fn example(palisade: palisade::Palisade, orders: impl palisade::Seal) {
    /// palisade.lock("warm-the-cache").efficiency().seal(orders);
    /// # }
    /// ```
    ///
    /// Nor does one that is shared, because its holders would shut each other out:
    ///
    /// ```compile_fail,E0599
    /// # async fn example(palisade: palisade::Palisade, orders: impl palisade::Seal) {
    /// palisade.rw_lock("table").read().seal(orders);
    /// # }
    /// ```
    pub fn seal<S: Seal>(self, resources: S) -> SealingRequest<G, S> {
        SealingRequest { request: self, resources }
    }
}

impl<G: Exclusive, S: Seal> SealingRequest<G, S> {
    /// Waits its turn, takes the lock, and seals.
    ///
    /// # Cancellation
    ///
    /// Dropping the future leaves nothing queued and nothing held. Resources may have been sealed, which does no harm:
    /// the next holder's token is higher.
    ///
    /// # On connection loss
    ///
    /// As [`Request::acquire`] while it waits for the lock.
    ///
    /// # Errors
    ///
    /// As [`Request::acquire`]. [`ErrorKind::NotSealed`]: a resource cannot be reached, or a newer token has sealed it;
    /// the lock is given back. [`ErrorKind::Lost`]: the lock was lost while sealing.
    pub async fn acquire(self) -> Result<(G, S::Sealed), Error> {
        let SealingRequest { request, resources } = self;
        seal(request.acquire().await?, &resources).await
    }

    /// Takes the lock if it is available now, and seals; `None` if it is not.
    ///
    /// # Cancellation, connection loss, errors
    ///
    /// As [`acquire`](SealingRequest::acquire), and as [`Request::try_acquire`].
    pub async fn try_acquire(self) -> Result<Option<(G, S::Sealed)>, Error> {
        let SealingRequest { request, resources } = self;
        match request.try_acquire().await? {
            Some(guard) => seal(guard, &resources).await.map(Some),
            None => Ok(None),
        }
    }

    /// Waits at most this long, and seals; `None` if the lock was not granted in time. Sealing takes as long as the resources
    /// take.
    ///
    /// # Cancellation, connection loss, errors
    ///
    /// As [`acquire`](SealingRequest::acquire).
    pub async fn acquire_within(self, wait: Duration) -> Result<Option<(G, S::Sealed)>, Error> {
        let SealingRequest { request, resources } = self;
        match request.acquire_within(wait).await? {
            Some(guard) => seal(guard, &resources).await.map(Some),
            None => Ok(None),
        }
    }

    /// Takes the lock, seals, does the work, and releases it. The work is dropped when the lock is lost.
    ///
    /// # Cancellation
    ///
    /// The work is dropped and the lock is released.
    ///
    /// # Errors
    ///
    /// As [`acquire`](SealingRequest::acquire); [`ErrorKind::Lost`] when the lock was lost before the work was done.
    pub async fn run<T>(self, work: impl AsyncFnOnce(&G, S::Sealed) -> T) -> Result<T, Error> {
        let (guard, sealed) = self.acquire().await?;
        guard.run(work(&guard, sealed)).await
    }
}

/// Seals everything, or gives the lock back.
async fn seal<G: Exclusive, S: Seal>(guard: G, resources: &S) -> Result<(G, S::Sealed), Error> {
    const OPERATION: &str = "acquire";
    let sealing = resources.seal(guard.token()?);
    let sealed = match select(std::pin::pin!(sealing), std::pin::pin!(guard.lost())).await {
        Either::Left((sealed, _)) => sealed,
        Either::Right((loss, _)) => return Err(guard.error(ErrorKind::Lost(loss), OPERATION)),
    };
    match sealed {
        Ok(sealed) => {
            guard.token()?;
            Ok((guard, sealed))
        }
        Err(error) => {
            // If it was lost meanwhile, it is as good as given back. If the engine does not answer, the keeper goes on.
            let is_given_back = match guard.release().await {
                Ok(()) => true,
                Err(failed) => failed.loss().is_some(),
            };
            Err(guard.error(ErrorKind::NotSealed { error, is_given_back }, OPERATION))
        }
    }
}
