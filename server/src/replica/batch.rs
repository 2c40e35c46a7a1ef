//! Commands as the data of one entry.

use palisade_core::Command;

/// The first byte of the data: the version of its format.
const FORMAT: u8 = 1;

/// An entry gets no further command once it has this many bytes. Members refuse messages that are much larger.
const ENTRY_BYTES: usize = 1 << 20;

/// Encodes commands as entries, and counts those in each.
pub(super) fn encode<'a>(commands: impl Iterator<Item = &'a Command>) -> Vec<(usize, Vec<u8>)> {
    let mut entries: Vec<(usize, Vec<u8>)> = Vec::new();
    for command in commands {
        let (count, data) = entries.pop_if(|(_, data)| data.len() < ENTRY_BYTES).unwrap_or_else(|| (0, vec![FORMAT]));
        match postcard::to_extend(command, data) {
            Ok(data) => entries.push((count + 1, data)),
            Err(error) => unreachable!("a command can always be encoded: {error}"),
        }
    }
    entries
}

/// Decodes an entry's data. The empty entry that begins a term has no commands.
pub fn decode(data: &[u8]) -> Vec<Command> {
    let Some((format, mut rest)) = data.split_first() else { return Vec::new() };
    assert_eq!(*format, FORMAT, "the log holds an entry of format {format}, written by a newer build");
    let mut commands = Vec::new();
    while !rest.is_empty() {
        match postcard::take_from_bytes(rest) {
            Ok((command, after)) => {
                commands.push(command);
                rest = after;
            }
            // The checksum of the frame was right, so this is a bug and not damage.
            Err(error) => panic!("the log holds an entry that cannot be read: {error}"),
        }
    }
    commands
}
