//! Names of resources.

/// What is wrong with a resource's name, if anything is.
pub(crate) fn check_name(name: &str) -> Result<(), String> {
    const MAX_BYTES: usize = 512;
    if name.is_empty() {
        return Err("a resource's name must not be empty".to_owned());
    }
    if name.len() > MAX_BYTES {
        return Err(format!("a resource's name has at most {MAX_BYTES} bytes; this one has {}", name.len()));
    }
    match name.char_indices().find(|(_, character)| character.is_control()) {
        Some((at, _)) => Err(format!("a resource's name has no control characters (one is at byte {at})")),
        None => Ok(()),
    }
}
