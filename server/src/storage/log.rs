//! The log on disk: numbered frames in segments that are filled with zeros before they are used.

use std::collections::VecDeque;
use std::io;
use std::sync::mpsc;

use super::disk::{Disk, DiskFile};
use super::error::{StorageError, TornWrite};
use super::frame::{self, Found};

const MAGIC: [u8; 8] = *b"PLSDLOG\n";
/// Each segment begins with magic, format, the number of its first frame, its size, and a checksum of these.
const HEADER: usize = 64;
/// The next segment, while it is prepared.
const SPARE: &str = "spare";

/// A log of frames, each with the index of the last entry in it.
pub(super) struct Log<D: Disk> {
    disk: D,
    segment_size: usize,
    full: VecDeque<Full>,
    current: Option<Segment<D::File>>,
    next_number: u64,
    buffer: Vec<u8>,
    spare: Option<mpsc::Receiver<io::Result<()>>>,
    /// The torn last write that `open` has undone.
    undone: Option<TornWrite>,
}

/// A segment that is full, and the index of its last entry.
struct Full {
    name: String,
    index: u64,
}

struct Segment<F> {
    name: String,
    file: F,
    end: usize,
    size: usize,
    index: u64,
}

impl<D: Disk> Log<D> {
    /// Opens the log, and passes every frame to `read`, which returns the index of the last entry in it. Undoes a torn
    /// write at the very end: it was never acknowledged.
    pub(super) fn open(
        disk: D,
        segment_size: usize,
        mut read: impl FnMut(&[u8]) -> Result<u64, String>,
    ) -> Result<Log<D>, StorageError> {
        let names = disk.list().map_err(|source| StorageError::io("list", disk.path(""), source))?;
        if names.iter().any(|name| name == SPARE) {
            disk.remove(SPARE).map_err(|source| StorageError::io("remove", disk.path(SPARE), source))?;
        }
        let names: Vec<_> = names.into_iter().filter(|name| name.starts_with("log-")).collect();
        let (mut full, buffer) = (VecDeque::new(), Vec::new());
        let mut log = Log {
            disk,
            segment_size,
            full: VecDeque::new(),
            current: None,
            next_number: 1,
            buffer,
            spare: None,
            undone: None,
        };
        for (at, name) in names.iter().enumerate() {
            if let Some(Segment { name, index, .. }) = log.current.take() {
                full.push_back(Full { name, index });
            }
            let is_first = at == 0;
            log.current = Some(log.scan(name, is_first, at + 1 == names.len(), &mut read)?);
        }
        log.full = full;
        Ok(log)
    }

    fn scan(
        &mut self,
        name: &str,
        is_first: bool,
        is_last: bool,
        read: &mut impl FnMut(&[u8]) -> Result<u64, String>,
    ) -> Result<Segment<D::File>, StorageError> {
        let failed = |what, source| StorageError::io(what, self.disk.path(name), source);
        let damaged = |offset, what: &str| StorageError::damaged(self.disk.path(name), offset, what);
        let bytes = self.disk.read(name).map_err(|source| failed("read", source))?;
        let (first, size) = read_header(&bytes).map_err(|what| what.of(self.disk.path(name)))?;
        // A segment has its full size before it is renamed.
        if bytes.len() as u64 != size {
            return Err(damaged(bytes.len(), &format!("it ends here, and was made with {size} bytes")));
        }
        if is_first {
            self.next_number = first;
        } else if self.next_number != first {
            return Err(damaged(0, "frames before it are missing"));
        }
        let (mut offset, mut index) = (HEADER, 0);
        let (mut last_frame, mut zeros) = (HEADER..HEADER, Vec::new());
        loop {
            match frame::find(&bytes, offset, self.next_number) {
                Found::Frame { body, end } => {
                    // A frame may have no entries: that of a vote.
                    index = index.max(read(body).map_err(|what| damaged(offset, &what))?);
                    last_frame = offset..end;
                    (offset, self.next_number) = (end, self.next_number + 1);
                }
                Found::Nothing => break,
                Found::Torn if is_last => {
                    zeros = vec![0; bytes.len() - offset];
                    self.undone = Some(TornWrite { file: self.disk.path(name), offset });
                    tracing::warn!(file = self.disk.path(name), offset, "the last write was cut short and is undone");
                    break;
                }
                Found::Torn | Found::Damaged => return Err(damaged(offset, "the checksum does not match")),
            }
        }
        let mut file = self.disk.open(name).map_err(|source| failed("open", source))?;
        if is_last {
            // The last frame may be only in the system's memory: its writer may have been killed, or its flush may have failed. Then
            // another flush does nothing, unless the frame is written again.
            let start = last_frame.start;
            let end = [&bytes[last_frame], &zeros].concat();
            file.write_at(&end, start as u64).map_err(|source| failed("write", source))?;
            file.sync().map_err(|source| failed("flush", source))?;
        }
        Ok(Segment { name: name.to_owned(), file, end: offset, size: bytes.len(), index })
    }

    /// Makes a frame durable. After a failure the log must not be used any more: the content of the disk is unknown.
    pub(super) fn append(&mut self, body: &[u8], index: u64) -> Result<(), StorageError> {
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.clear();
        frame::encode(self.next_number, body, &mut buffer);
        let written = self.write(&buffer, index);
        self.buffer = buffer;
        self.next_number += 1;
        written
    }

    fn write(&mut self, bytes: &[u8], index: u64) -> Result<(), StorageError> {
        if self.current.as_ref().is_none_or(|segment| segment.end + bytes.len() > segment.size) {
            self.begin_segment(bytes.len())?;
        }
        let Some(segment) = &mut self.current else { unreachable!("a segment was begun") };
        let failed = |what, source| StorageError::io(what, self.disk.path(&segment.name), source);
        segment.file.write_at(bytes, segment.end as u64).map_err(|source| failed("write", source))?;
        segment.file.sync().map_err(|source| failed("flush", source))?;
        segment.end += bytes.len();
        segment.index = segment.index.max(index);
        Ok(())
    }

    fn begin_segment(&mut self, needed: usize) -> Result<(), StorageError> {
        let name = format!("log-{:020}", self.next_number);
        let path = self.disk.path(&name);
        let failed = |what: &'static str| {
            let path = path.clone();
            move |source| StorageError::io(what, path, source)
        };
        let made = self.spare.take().map(|making| making.recv().unwrap_or_else(|gone| Err(io::Error::other(gone))));
        let size = self.segment_size.max(needed + HEADER);
        if !matches!(made, Some(Ok(()))) || size > self.segment_size {
            make_spare(&self.disk, size).map_err(failed("prepare"))?;
        }
        let mut file = self.disk.open(SPARE).map_err(failed("open"))?;
        file.write_at(&header(self.next_number, size as u64), 0).map_err(failed("write"))?;
        file.sync().map_err(failed("flush"))?;
        self.disk.rename(SPARE, &name).and_then(|()| self.disk.sync()).map_err(failed("name"))?;
        let segment = Segment { name, file, end: HEADER, size, index: 0 };
        // A segment without frames had the same name, and was replaced.
        if let Some(Segment { name, index, end, .. }) = self.current.replace(segment)
            && end > HEADER
        {
            self.full.push_back(Full { name, index });
        }
        self.prepare_spare();
        Ok(())
    }

    /// Prepares the next segment in the background.
    fn prepare_spare(&mut self) {
        let (sender, receiver) = mpsc::channel();
        let (disk, size) = (self.disk.clone(), self.segment_size);
        // Without it, the next segment is made when it is needed.
        self.disk.spawn(move || drop(sender.send(make_spare(&disk, size))));
        self.spare = Some(receiver);
    }

    /// Returns the torn last write that `open` has undone.
    pub(super) fn undone(&self) -> Option<&TornWrite> {
        self.undone.as_ref()
    }

    /// Returns whether nothing was ever written.
    pub(super) fn is_new(&self) -> bool {
        self.current.is_none()
    }

    /// Removes the segments that have nothing after this entry.
    pub(super) fn forget(&mut self, index: u64) -> Result<(), StorageError> {
        // The last frame has the hard state. If a crash left the current segment without frames, it is in the one before.
        let is_empty = self.current.as_ref().is_some_and(|segment| segment.end == HEADER);
        let keep = usize::from(is_empty);
        while self.full.len() > keep && self.full.front().is_some_and(|full| full.index <= index) {
            let Some(Full { name, .. }) = self.full.pop_front() else { break };
            self.disk.remove(&name).map_err(|source| StorageError::io("remove", self.disk.path(&name), source))?;
        }
        Ok(())
    }
}

fn make_spare<D: Disk>(disk: &D, size: usize) -> io::Result<()> {
    match disk.remove(SPARE) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = disk.create(SPARE)?;
    // Linux caches one large write as one large folio, and flushing a few bytes of it takes longer the larger it is: on
    // ext4 with 1 MiB by a sixth, with 4 MiB by half.
    let zeros = vec![0; 64 << 10];
    for offset in (0..size).step_by(zeros.len()) {
        file.write_at(&zeros[..zeros.len().min(size - offset)], offset as u64)?;
    }
    file.sync()
}

fn header(first: u64, size: u64) -> [u8; HEADER] {
    let mut bytes = [0; HEADER];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..12].copy_from_slice(&super::FORMAT.to_le_bytes());
    bytes[12..20].copy_from_slice(&first.to_le_bytes());
    bytes[20..28].copy_from_slice(&size.to_le_bytes());
    let sum = crc32fast::hash(&bytes[..28]);
    bytes[28..32].copy_from_slice(&sum.to_le_bytes());
    bytes
}

/// Why a file's header is refused.
pub(super) enum HeaderError {
    Damaged(&'static str),
    Format(u32),
}

impl HeaderError {
    pub(super) fn of(self, file: String) -> StorageError {
        match self {
            HeaderError::Damaged(what) => StorageError::damaged(file, 0, what),
            HeaderError::Format(found) => StorageError::UnknownFormat { file, found },
        }
    }
}

/// Reads the number of a segment's first frame, and its size.
fn read_header(bytes: &[u8]) -> Result<(u64, u64), HeaderError> {
    let header = bytes.get(..32).ok_or(HeaderError::Damaged("it is too short"))?;
    let word = |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
    let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
    if header[..8] != MAGIC {
        return Err(HeaderError::Damaged("it does not begin as a segment of the log does"));
    }
    match word(8) {
        super::FORMAT if word(28) == crc32fast::hash(&header[..28]) => Ok((long(12), long(20))),
        super::FORMAT => Err(HeaderError::Damaged("the checksum of its header does not match")),
        other => Err(HeaderError::Format(other)),
    }
}
