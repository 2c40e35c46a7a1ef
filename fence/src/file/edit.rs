//! The changes of a write to a folder.

/// One change of a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Edit {
    /// Creates or replaces a file.
    Put {
        /// The file's name within the folder.
        name: String,
        /// Its whole content.
        contents: Vec<u8>,
    },
    /// Removes a file, if it exists.
    Remove {
        /// The file's name within the folder.
        name: String,
    },
}

impl Edit {
    /// Returns the file's name within the folder.
    pub fn name(&self) -> &str {
        match self {
            Edit::Put { name, .. } | Edit::Remove { name } => name,
        }
    }
}
