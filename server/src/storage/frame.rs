//! Frames: the unit of writing to the log. A header with its own checksum, then the body.
//!
//! A frame is written only when the one before it is durable. So only the last frame can be torn; a bad one anywhere else
//! was damaged later.

/// Before each body: its length, its checksum, the frame's number, and a checksum of these.
const HEADER: usize = 20;
/// The end marker after each body. A frame without it was not written completely.
const END_MARKER: [u8; 4] = *b"done";
/// Frames begin at multiples of this.
const ALIGNMENT: usize = 8;
/// The unit that a disk writes atomically.
const SECTOR: usize = 512;

/// Encodes a frame, padded to the beginning of the next one.
pub(super) fn encode(number: u64, body: &[u8], into: &mut Vec<u8>) {
    let began = into.len();
    let length = u32::try_from(body.len()).unwrap_or(u32::MAX);
    into.extend_from_slice(&length.to_le_bytes());
    into.extend_from_slice(&crc32fast::hash(body).to_le_bytes());
    into.extend_from_slice(&number.to_le_bytes());
    into.extend_from_slice(&crc32fast::hash(&into[began..]).to_le_bytes());
    into.extend_from_slice(body);
    into.extend_from_slice(&END_MARKER);
    into.resize(began + (into.len() - began).next_multiple_of(ALIGNMENT), 0);
}

/// Returns the size of a frame with its padding.
pub(super) fn size(body: usize) -> usize {
    (HEADER + body + END_MARKER.len()).next_multiple_of(ALIGNMENT)
}

/// The content of a segment at some offset.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found<'a> {
    /// A frame, and the offset of the next one.
    Frame { body: &'a [u8], end: usize },
    /// Nothing was written here.
    Nothing,
    /// An incomplete write.
    Torn,
    /// A frame that has changed since it was written.
    Damaged,
}

struct Header {
    length: usize,
    sum: u32,
    number: u64,
}

impl Header {
    fn read(segment: &[u8], offset: usize) -> Option<Header> {
        let bytes = segment.get(offset..offset + HEADER)?;
        let (fields, sum) = bytes.split_at(HEADER - 4);
        if crc32fast::hash(fields).to_le_bytes() != sum {
            return None;
        }
        Some(Header {
            length: u32::from_le_bytes(fields[0..4].try_into().ok()?) as usize,
            sum: u32::from_le_bytes(fields[4..8].try_into().ok()?),
            number: u64::from_le_bytes(fields[8..16].try_into().ok()?),
        })
    }

    fn body<'a>(&self, segment: &'a [u8], offset: usize) -> Option<&'a [u8]> {
        let body = segment.get(offset + HEADER..offset + HEADER + self.length)?;
        (crc32fast::hash(body) == self.sum).then_some(body)
    }
}

/// Looks for the frame of this number at an offset.
pub(super) fn find(segment: &[u8], offset: usize, number: u64) -> Found<'_> {
    let rest = segment.get(offset..).unwrap_or_default();
    if rest.iter().all(|byte| *byte == 0) {
        return Found::Nothing;
    }
    let header = Header::read(segment, offset);
    if let Some(header) = &header
        && header.number == number
        && let Some(body) = header.body(segment, offset)
    {
        return Found::Frame { body, end: offset + size(header.length) };
    }
    let is_torn = match header {
        Some(Header { length, .. }) => {
            let end = HEADER + length + END_MARKER.len();
            rest.get(end - END_MARKER.len()..end) != Some(&END_MARKER) || has_unwritten_sector(rest, offset, end)
        }
        None => {
            rest.get(HEADER - 4..HEADER).is_none_or(|sum| sum == [0; 4]) || has_unwritten_sector(rest, offset, HEADER)
        }
    };
    if is_torn && !has_frame_after(segment, offset, number) { Found::Torn } else { Found::Damaged }
}

/// Segments are filled with zeros beforehand, so a torn write leaves a sector of zeros, or ends in zeros. A frame that was
/// written completely and damaged later does not.
fn has_unwritten_sector(rest: &[u8], offset: usize, length: usize) -> bool {
    let written = &rest[..length.min(rest.len())];
    let first = (SECTOR - offset % SECTOR).min(written.len());
    let (head, tail) = written.split_at(first);
    let is_zero = |sector: &[u8]| sector.iter().all(|byte| *byte == 0);
    is_zero(head) || tail.chunks(SECTOR).any(is_zero)
}

/// Returns whether a frame with a higher number follows anywhere after this offset.
fn has_frame_after(segment: &[u8], offset: usize, number: u64) -> bool {
    (offset + ALIGNMENT..segment.len()).step_by(ALIGNMENT).any(|at| {
        Header::read(segment, at).is_some_and(|header| header.number > number && header.body(segment, at).is_some())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three frames in a segment of zeros; the middle one spans several sectors.
    fn segment() -> (Vec<u8>, [usize; 3]) {
        let mut bytes = Vec::new();
        let mut offsets = [0; 3];
        for (at, (number, body)) in [(1, vec![1u8; 100]), (2, vec![2; 3000]), (3, vec![3; 1500])].iter().enumerate() {
            offsets[at] = bytes.len();
            encode(*number, body, &mut bytes);
        }
        bytes.resize(16 << 10, 0);
        (bytes, offsets)
    }

    fn read(segment: &[u8]) -> (u64, Found<'_>) {
        let (mut offset, mut number) = (0, 1);
        loop {
            match find(segment, offset, number) {
                Found::Frame { end, .. } => (offset, number) = (end, number + 1),
                other => return (number, other),
            }
        }
    }

    #[test]
    fn written_frames_are_read() {
        let (segment, _) = segment();
        assert_eq!(read(&segment), (4, Found::Nothing));
    }

    #[test]
    fn a_last_frame_that_misses_any_sector_is_torn() {
        let (whole, offsets) = segment();
        for sector in offsets[2] / SECTOR..=(offsets[2] + 1500) / SECTOR {
            let mut torn = whole.clone();
            let from = (sector * SECTOR).max(offsets[2]);
            torn[from..(sector + 1) * SECTOR].fill(0);
            assert_eq!(read(&torn), (3, Found::Torn), "sector {sector}");
        }
    }

    #[test]
    fn a_flipped_bit_is_damage_wherever_it_is() {
        let (whole, offsets) = segment();
        for at in (0..offsets[2] + HEADER + 1500).step_by(7) {
            let mut flipped = whole.clone();
            flipped[at] ^= 0x10;
            let (number, found) = read(&flipped);
            let is_padding = found == Found::Nothing;
            assert!(found == Found::Damaged || is_padding && number == 4, "byte {at}: {found:?} at frame {number}");
        }
    }

    #[test]
    fn a_sector_lost_before_the_end_is_damage() {
        let (whole, offsets) = segment();
        for sector in 0..offsets[2] / SECTOR {
            let mut lost = whole.clone();
            lost[sector * SECTOR..(sector + 1) * SECTOR].fill(0);
            assert_eq!(read(&lost).1, Found::Damaged, "sector {sector}");
        }
    }
}
