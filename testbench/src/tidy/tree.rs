use std::fs::{self, Metadata};
use std::io;
use std::path::Path;
use std::process::Command;
use std::{fmt, str};

/// One text file of the repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextFile {
    /// Relative to the root, with forward slashes.
    pub path: String,
    /// What is in it.
    pub text: String,
    /// Whether its owner may run it.
    pub is_executable: bool,
}

impl TextFile {
    /// A file that is not executable.
    pub fn new(path: &str, text: &str) -> Self {
        Self { path: path.to_owned(), text: text.to_owned(), is_executable: false }
    }

    /// The folder that it is in; empty at the root.
    pub(super) fn folder(&self) -> &str {
        self.path.rsplit_once('/').map_or("", |(folder, _)| folder)
    }

    /// Its last part.
    pub(super) fn name(&self) -> &str {
        self.path.rsplit_once('/').map_or(&self.path, |(_, name)| name)
    }

    /// The folder directly below the root that it is in; empty at the root.
    pub(super) fn room(&self) -> &str {
        self.path.split_once('/').map_or("", |(room, _)| room)
    }

    pub(super) fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }
}

/// One thing that is wrong, where, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Which file.
    pub path: String,
    /// Which line of it, counted from 1.
    pub line: usize,
    /// What is wrong and what to do.
    pub advice: String,
}

impl Finding {
    pub(super) fn new(file: &TextFile, line: usize, advice: impl Into<String>) -> Self {
        Self { path: file.path.clone(), line, advice: advice.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.advice)
    }
}

/// Reads the repository: what git tracks or would track, or, without git, everything but hidden folders and build
/// output. Files that are not UTF-8 are left out.
///
/// # Errors
///
/// When a folder or file cannot be read.
pub fn read_tree(root: &Path) -> io::Result<Vec<TextFile>> {
    let mut paths = match listed_by_git(root) {
        Some(paths) => paths,
        None => walked(root, "")?,
    };
    paths.sort();
    let mut files = Vec::new();
    for path in paths {
        let place = root.join(&path);
        // Git still lists a file that was deleted but not yet committed.
        let Ok(metadata) = fs::metadata(&place) else { continue };
        if !metadata.is_file() {
            continue;
        }
        if let Ok(text) = String::from_utf8(fs::read(&place)?) {
            files.push(TextFile { path, text, is_executable: is_executable(&metadata) });
        }
    }
    Ok(files)
}

fn listed_by_git(root: &Path) -> Option<Vec<String>> {
    let mut git = Command::new("git");
    git.current_dir(root).args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]);
    let output = git.output().ok().filter(|output| output.status.success())?;
    let paths = str::from_utf8(&output.stdout).ok()?.split('\0');
    let paths: Vec<String> = paths.filter(|path| !path.is_empty()).map(str::to_owned).collect();
    (!paths.is_empty()).then_some(paths)
}

fn walked(root: &Path, folder: &str) -> io::Result<Vec<String>> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(root.join(folder))? {
        let entry = entry?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        let path = if folder.is_empty() { name.clone() } else { format!("{folder}/{name}") };
        if !entry.file_type()?.is_dir() {
            paths.push(path);
        } else if name != "target" && name != ".git" {
            paths.extend(walked(root, &path)?);
        }
    }
    Ok(paths)
}

#[cfg(unix)]
fn is_executable(metadata: &Metadata) -> bool {
    use std::os::unix::fs::PermissionsExt;
    metadata.permissions().mode() & 0o100 != 0
}

#[cfg(not(unix))]
fn is_executable(_: &Metadata) -> bool {
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn walking_and_git_find_the_same_manifests() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let manifests = |mut paths: Vec<String>| {
            paths.retain(|path| path.ends_with("Cargo.toml"));
            paths.sort();
            paths
        };
        let found = manifests(walked(&root, "").unwrap());
        assert!(found.contains(&"testbench/Cargo.toml".to_owned()), "{found:?}");
        if let Some(listed) = listed_by_git(&root) {
            assert_eq!(manifests(listed), found);
        }
    }

    #[test]
    fn a_finding_names_its_file_and_line() {
        let finding = Finding::new(&TextFile::new("core/src/lib.rs", ""), 7, "do this");
        assert_eq!(finding.to_string(), "core/src/lib.rs:7: do this");
    }
}
