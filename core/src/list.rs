//! A doubly linked list through the slots of a slab. Appending, and removing any member, take constant time.

use serde::{Deserialize, Serialize};

use crate::slab::{Slab, Slot};

/// The neighbours of a member.
#[derive(Debug, Serialize, Deserialize)]
#[serde(bound = "")]
pub(crate) struct Link<T> {
    pub(crate) prev: Slot<T>,
    pub(crate) next: Slot<T>,
}

impl<T> Link<T> {
    pub(crate) const ALONE: Link<T> = Link { prev: Slot::NONE, next: Slot::NONE };
}

impl<T> Clone for Link<T> {
    fn clone(&self) -> Link<T> {
        *self
    }
}
impl<T> Copy for Link<T> {}

/// The ends of a list. A value can be in several lists, so each call names the link field of this list.
#[derive(Debug, Serialize, Deserialize)]
#[serde(bound = "")]
pub(crate) struct List<T> {
    pub(crate) head: Slot<T>,
    pub(crate) tail: Slot<T>,
    pub(crate) len: u32,
}

impl<T> Clone for List<T> {
    fn clone(&self) -> List<T> {
        *self
    }
}
impl<T> Copy for List<T> {}

/// Returns the link field of a list's member.
pub(crate) type LinkOf<T> = fn(&T) -> &Link<T>;
/// Returns the link field of a list's member, to change it.
pub(crate) type LinkOfMut<T> = fn(&mut T) -> &mut Link<T>;

impl<T> List<T> {
    pub(crate) const EMPTY: List<T> = List { head: Slot::NONE, tail: Slot::NONE, len: 0 };

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    #[inline]
    pub(crate) fn push_back(&mut self, slab: &mut Slab<T>, slot: Slot<T>, link: LinkOfMut<T>) {
        *link(&mut slab[slot]) = Link { prev: self.tail, next: Slot::NONE };
        match self.tail.some() {
            Some(tail) => link(&mut slab[tail]).next = slot,
            None => self.head = slot,
        }
        self.tail = slot;
        self.len += 1;
    }

    #[inline]
    pub(crate) fn unlink(&mut self, slab: &mut Slab<T>, slot: Slot<T>, link: LinkOfMut<T>) {
        let Link { prev, next } = std::mem::replace(link(&mut slab[slot]), Link::ALONE);
        match prev.some() {
            Some(prev) => link(&mut slab[prev]).next = next,
            None => self.head = next,
        }
        match next.some() {
            Some(next) => link(&mut slab[next]).prev = prev,
            None => self.tail = prev,
        }
        self.len -= 1;
    }

    /// Returns the members from front to back.
    pub(crate) fn iter<'a>(&self, slab: &'a Slab<T>, link: LinkOf<T>) -> impl Iterator<Item = Slot<T>> + use<'a, T> {
        std::iter::successors(self.head.some(), move |slot| link(&slab[*slot]).next.some())
    }
}
