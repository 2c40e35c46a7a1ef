//! Acquiring a lock and sealing its resources in one call.

use std::ops::Deref;
use std::time::Duration;

use futures_util::future::{Either, select};
use palisade_core::Seal;

use crate::guard::{Guard, Leadership, LockGuard, WriteGuard};
use crate::lock::Request;
use crate::{Error, ErrorKind};

/// A guard that excludes all other holders. Only such a guard can seal: of several holders, the one with the newest token
/// would fence out the others.
pub trait Exclusive: From<Guard> + Deref<Target = Guard> {}

impl Exclusive for LockGuard {}
impl Exclusive for WriteGuard {}
/// Observers may see a leader before its resources are sealed.
impl Exclusive for Leadership {}

/// A request that is not sent yet, for a lock together with the resources that it seals.
#[must_use = "a request does nothing until `acquire` or `try_acquire` is called"]
pub struct SealingRequest<G, S> {
    request: Request<G>,
    resources: S,
}

impl<G: Exclusive> Request<G> {
    /// Seals these resources with the grant's token before the caller gets the guard. From then on they refuse what an older
    /// holder sends. The caller reads and writes only through the sealed handles. `resources` is one resource, a tuple of
    /// several, or a `Vec`; `palisade-fence` has the types.
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
    /// A lock for efficiency has no token, so it cannot seal:
    ///
    /// ```compile_fail,E0599
    /// # async fn example(palisade: palisade::Palisade, orders: impl palisade::Seal) {
    /// palisade.lock("warm-the-cache").efficiency().seal(orders);
    /// # }
    /// ```
    ///
    /// A shared lock cannot seal either, because its holders would fence each other out:
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
    /// Waits for the lock, and seals the resources.
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
    /// the lock is released. [`ErrorKind::Lost`]: the lock was lost while sealing.
    pub async fn acquire(self) -> Result<(G, S::Sealed), Error> {
        let SealingRequest { request, resources } = self;
        seal(request.acquire().await?, &resources).await
    }

    /// Acquires the lock if it is available now, and seals; `None` if it is not.
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

    /// Waits at most this long, and seals; `None` if the lock was not granted in time. The time for
    /// sealing is not limited.
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

    /// Acquires the lock, seals, runs `work`, and releases the lock. Drops `work` if the lock is lost.
    ///
    /// # Cancellation
    ///
    /// `work` is dropped and the lock is released.
    ///
    /// # Errors
    ///
    /// As [`acquire`](SealingRequest::acquire); [`ErrorKind::Lost`] if the lock was lost before `work` ended.
    pub async fn run<T>(self, work: impl AsyncFnOnce(&G, S::Sealed) -> T) -> Result<T, Error> {
        let (guard, sealed) = self.acquire().await?;
        guard.run(work(&guard, sealed)).await
    }
}

/// Seals all resources, or releases the lock.
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
            // A lock that was lost meanwhile counts as released. If the engine does not answer, the keeper retries.
            let is_released = match guard.release().await {
                Ok(()) => true,
                Err(failed) => failed.loss().is_some(),
            };
            Err(guard.error(ErrorKind::NotSealed { error, is_released }, OPERATION))
        }
    }
}
