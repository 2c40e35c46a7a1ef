//! Numbered slots in chunks: a slot never moves, growing never copies, and the order of slots depends only on the
//! commands.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Index, IndexMut};

use serde::{Deserialize, Serialize};

/// Slots per chunk. Growing allocates one chunk and moves no value.
const CHUNK: usize = 1024;

/// An index into the slab of `T`s, or [`Slot::NONE`].
#[derive(Serialize, Deserialize)]
#[serde(transparent, bound = "")]
pub(crate) struct Slot<T>(u32, #[serde(skip)] PhantomData<fn() -> T>);

impl<T> Slot<T> {
    pub(crate) const NONE: Slot<T> = Slot(u32::MAX, PhantomData);

    pub(crate) fn new(number: u32) -> Slot<T> {
        Slot(number, PhantomData)
    }

    pub(crate) fn number(self) -> u32 {
        self.0
    }

    pub(crate) fn is_none(self) -> bool {
        self.0 == u32::MAX
    }

    /// `None` for [`Slot::NONE`].
    pub(crate) fn some(self) -> Option<Slot<T>> {
        (!self.is_none()).then_some(self)
    }

    fn split(self) -> (usize, usize) {
        (self.0 as usize / CHUNK, self.0 as usize % CHUNK)
    }
}

impl<T> Clone for Slot<T> {
    fn clone(&self) -> Slot<T> {
        *self
    }
}
impl<T> Copy for Slot<T> {}
impl<T> PartialEq for Slot<T> {
    fn eq(&self, other: &Slot<T>) -> bool {
        self.0 == other.0
    }
}
impl<T> Eq for Slot<T> {}
impl<T> fmt::Debug for Slot<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.0)
    }
}

#[derive(Clone, Serialize, Deserialize)]
#[serde(bound(serialize = "T: Serialize", deserialize = "T: Deserialize<'de>"))]
enum Entry<T> {
    Vacant { next: Slot<T> },
    Full(T),
}

/// Values in numbered slots. A vacated slot is the next to be filled.
#[derive(Clone, Serialize, Deserialize)]
#[serde(bound(serialize = "T: Serialize", deserialize = "T: Deserialize<'de>"))]
pub(crate) struct Slab<T> {
    chunks: Vec<Vec<Entry<T>>>,
    vacant: Slot<T>,
    len: u32,
}

impl<T> Slab<T> {
    pub(crate) fn new() -> Slab<T> {
        Slab { chunks: Vec::new(), vacant: Slot::NONE, len: 0 }
    }

    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    pub(crate) fn insert(&mut self, value: T) -> Slot<T> {
        self.len += 1;
        if let Some(slot) = self.vacant.some() {
            let (chunk, at) = slot.split();
            let entry = &mut self.chunks[chunk][at];
            let Entry::Vacant { next } = *entry else { unreachable!("the vacant list leads to a full slot") };
            self.vacant = next;
            *entry = Entry::Full(value);
            return slot;
        }
        if self.chunks.last().is_none_or(|chunk| chunk.len() == CHUNK) {
            self.chunks.push(Vec::with_capacity(CHUNK));
        }
        let chunk = self.chunks.len() - 1;
        let at = self.chunks[chunk].len();
        self.chunks[chunk].push(Entry::Full(value));
        Slot::new((chunk * CHUNK + at) as u32)
    }

    pub(crate) fn remove(&mut self, slot: Slot<T>) -> T {
        let (chunk, at) = slot.split();
        let entry = &mut self.chunks[chunk][at];
        match std::mem::replace(entry, Entry::Vacant { next: self.vacant }) {
            Entry::Full(value) => {
                self.vacant = slot;
                self.len -= 1;
                value
            }
            Entry::Vacant { .. } => unreachable!("slot {slot:?} removed twice"),
        }
    }

    pub(crate) fn get(&self, slot: Slot<T>) -> Option<&T> {
        let (chunk, at) = slot.split();
        match self.chunks.get(chunk)?.get(at)? {
            Entry::Full(value) => Some(value),
            Entry::Vacant { .. } => None,
        }
    }

    /// Returns all values from this slot on, in the order of the slots.
    pub(crate) fn iter_from(&self, start: u32) -> impl Iterator<Item = (Slot<T>, &T)> {
        let (chunk, at) = Slot::<T>::new(start).split();
        let first = self.chunks.get(chunk).map_or(&[][..], |entries| entries.get(at..).unwrap_or(&[]));
        let rest = self.chunks.iter().skip(chunk + 1).flatten();
        first.iter().chain(rest).zip(start..).filter_map(|(entry, number)| match entry {
            Entry::Full(value) => Some((Slot::new(number), value)),
            Entry::Vacant { .. } => None,
        })
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Slot<T>, &T)> {
        self.iter_from(0)
    }

    /// Returns whether the chunks, the count and the list of vacant slots agree. For restored snapshots.
    pub(crate) fn is_sound(&self) -> bool {
        let full_chunks = self.chunks.split_last().is_none_or(|(last, others)| {
            (1..=CHUNK).contains(&last.len()) && others.iter().all(|chunk| chunk.len() == CHUNK)
        });
        let slots = self.chunks.iter().map(Vec::len).sum::<usize>();
        let full = self.chunks.iter().flatten().filter(|entry| matches!(entry, Entry::Full(_))).count();
        let mut vacant = 0;
        let mut next = self.vacant;
        while let Some(slot) = next.some() {
            let (chunk, at) = slot.split();
            match self.chunks.get(chunk).and_then(|entries| entries.get(at)) {
                Some(Entry::Vacant { next: after }) if vacant < slots => next = *after,
                _ => return false,
            }
            vacant += 1;
        }
        full_chunks && slots < u32::MAX as usize && full == self.len as usize && full + vacant == slots
    }
}

impl<T> Index<Slot<T>> for Slab<T> {
    type Output = T;
    fn index(&self, slot: Slot<T>) -> &T {
        let (chunk, at) = slot.split();
        match &self.chunks[chunk][at] {
            Entry::Full(value) => value,
            Entry::Vacant { .. } => unreachable!("slot {slot:?} is vacant"),
        }
    }
}

impl<T> IndexMut<Slot<T>> for Slab<T> {
    fn index_mut(&mut self, slot: Slot<T>) -> &mut T {
        let (chunk, at) = slot.split();
        match &mut self.chunks[chunk][at] {
            Entry::Full(value) => value,
            Entry::Vacant { .. } => unreachable!("slot {slot:?} is vacant"),
        }
    }
}
