//! What a write does to a folder.

/// One thing that is done to a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Edit {
    /// This file has these contents, whether it was there before or not.
    Put {
        /// The file's name within the folder.
        name: String,
        /// All that it contains.
        contents: Vec<u8>,
    },
    /// This file is not there, whether it was there before or not.
    Remove {
        /// The file's name within the folder.
        name: String,
    },
}

impl Edit {
    /// The file's name within the folder.
    pub fn name(&self) -> &str {
        match self {
            Edit::Put { name, .. } | Edit::Remove { name } => name,
        }
    }
}
