//! Bytes in this process: the reference for every adapter, and a resource for tests.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use palisade_core::Token;

use crate::{Error, ErrorKind, FenceState, Mark, Pass, Resource, Verdict};

/// Bytes that are read and replaced. A write returns what was there before. All clones are the same bytes.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), palisade_fence::Error> {
/// use palisade_fence::{Sealed, Token, memory::Memory};
/// let memory = Memory::new("orders");
/// let mut old = Sealed::seal(memory.clone(), Token::new(33).expect("a token")).await?;
/// assert_eq!(old.write(b"one".to_vec()).await?, b"");
///
/// let new = Sealed::seal(memory, Token::new(34).expect("a token")).await?;
/// assert!(old.write(b"two".to_vec()).await.is_err());
/// assert_eq!(new.read(()).await?, b"one");
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct Memory {
    name: Arc<str>,
    contents: Arc<Mutex<Contents>>,
}

#[derive(Debug, Default)]
struct Contents {
    state: FenceState<Vec<u8>>,
    bytes: Vec<u8>,
}

impl Memory {
    /// Returns an empty resource. The name is for messages.
    pub fn new(name: &str) -> Memory {
        Memory { name: name.into(), contents: Arc::default() }
    }

    fn contents(&self) -> MutexGuard<'_, Contents> {
        self.contents.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn refused(&self, verdict: &Verdict<Vec<u8>>, operation: &'static str, token: Token) -> Option<Error> {
        ErrorKind::refused(verdict).map(|kind| Error::new(kind, self.name(), operation).under(token))
    }
}

impl Resource for Memory {
    type Query = ();
    type Answer = Vec<u8>;
    type Change = Vec<u8>;
    type Outcome = Vec<u8>;

    fn name(&self) -> String {
        format!("memory {}", self.name)
    }

    async fn raise(&self, token: Token) -> Result<Mark, Error> {
        let superseded = |kind| Error::new(kind, self.name(), "seal").under(token);
        self.contents().state.seal(token).map_err(|by| superseded(ErrorKind::Superseded { seen: by.seen }))
    }

    async fn read(&self, pass: &Pass, (): ()) -> Result<Vec<u8>, Error> {
        let contents = self.contents();
        let refused = |verdict| self.refused(&verdict, "read", pass.token);
        match contents.state.admit_read(pass.token).err().and_then(refused) {
            Some(error) => Err(error),
            None => Ok(contents.bytes.clone()),
        }
    }

    async fn write(&self, pass: &Pass, change: Option<Vec<u8>>) -> Result<Option<Vec<u8>>, Error> {
        let mut contents = self.contents();
        let verdict = contents.state.admit(pass.stamp());
        if let Some(error) = self.refused(&verdict, "write", pass.token) {
            return Err(error);
        }
        if let Verdict::Duplicate(outcome) = verdict {
            return Ok(outcome);
        }
        let outcome = change.map(|bytes| std::mem::replace(&mut contents.bytes, bytes));
        contents.state.record(pass.stamp(), outcome.clone());
        Ok(outcome)
    }
}

crate::sealable!(Memory);
