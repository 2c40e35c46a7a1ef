//! Names of resources.

/// Checks a resource's name. Each store has its own maximum length.
pub(crate) fn check_name(name: &str, max_bytes: usize) -> Result<(), String> {
    if name.is_empty() {
        return Err("a resource's name must not be empty".to_owned());
    }
    if name.len() > max_bytes {
        return Err(format!("a resource's name has at most {max_bytes} bytes; this one has {}", name.len()));
    }
    match name.char_indices().find(|(_, character)| character.is_control()) {
        Some((at, _)) => Err(format!("a resource's name has no control characters (one is at byte {at})")),
        None => Ok(()),
    }
}
