use toml::{Table, Value};

use super::rust::{paths, tokens};
use super::tree::{Finding, TextFile};

/// A folder at the root, its package, and the packages of ours that it may import.
struct Room {
    folder: &'static str,
    package: &'static str,
    may_import: &'static [&'static str],
}

const ROOMS: [Room; 7] = [
    Room { folder: "core", package: "palisade-core", may_import: &[] },
    Room { folder: "lib", package: "palisade", may_import: &["palisade-core"] },
    Room { folder: "fence", package: "palisade-fence", may_import: &["palisade-core"] },
    Room { folder: "server", package: "palisade-server", may_import: &["palisade-core"] },
    Room { folder: "cli", package: "palisade-cli", may_import: &["palisade", "palisade-server", "palisade-fence"] },
    Room { folder: "python", package: "palisade-python", may_import: &["palisade", "palisade-fence"] },
    Room {
        folder: "testbench",
        package: "palisade-testbench",
        may_import: &["palisade-core", "palisade", "palisade-fence", "palisade-server", "palisade-cli"],
    },
];

/// Forbidden imports between crates, in the manifests and in the sources, and packages without a folder in the table.
pub fn forbidden_imports(files: &[TextFile]) -> Vec<Finding> {
    let root = files.iter().find(|file| file.path == "Cargo.toml");
    let workspace = root.and_then(|file| file.text.parse().ok()).unwrap_or_default();
    let mut findings: Vec<_> = root.into_iter().flat_map(|file| unknown_members(file, &workspace)).collect();
    for file in files {
        let room = ROOMS.iter().find(|room| room.folder == file.room());
        match room {
            Some(room) if file.name() == "Cargo.toml" => findings.extend(in_manifest(room, file, &workspace)),
            Some(room) if file.is_rust() => findings.extend(in_source(room, file)),
            _ => {}
        }
    }
    findings
}

fn unknown_members(file: &TextFile, workspace: &Table) -> Vec<Finding> {
    let members = workspace.get("workspace").and_then(|table| table.get("members")).and_then(Value::as_array);
    let names = members.into_iter().flatten().filter_map(Value::as_str);
    let unknown = names.filter(|name| ROOMS.iter().all(|room| room.folder != *name));
    let advice =
        |name: &str| format!("`{name}` is no room of the house: put the code in one, or add it to tidy's ROOMS");
    unknown.map(|name| Finding::new(file, line_of(&file.text, &format!("\"{name}\"")), advice(name))).collect()
}

fn in_manifest(room: &Room, file: &TextFile, workspace: &Table) -> Vec<Finding> {
    let manifest: Table = match file.text.parse() {
        Ok(manifest) => manifest,
        Err(error) => return vec![Finding::new(file, 1, format!("cargo could not read this: {error}"))],
    };
    let mut findings = Vec::new();
    for (key, value) in dependencies(&manifest) {
        let package = package_of(&key, &value, workspace);
        if let Some(advice) = refusal(room, &package) {
            findings.push(Finding::new(file, line_of_key(&file.text, &key), advice));
        }
    }
    findings
}

/// All dependencies of a manifest: normal, dev and build, also those of one target only.
fn dependencies(manifest: &Table) -> Vec<(String, Value)> {
    let targets = manifest.get("target").and_then(Value::as_table);
    let targets = targets.into_iter().flat_map(|table| table.values()).filter_map(Value::as_table);
    let mut all = Vec::new();
    for table in std::iter::once(manifest).chain(targets) {
        for kind in ["dependencies", "dev-dependencies", "build-dependencies"] {
            let entries = table.get(kind).and_then(Value::as_table).into_iter().flatten();
            all.extend(entries.map(|(key, value)| (key.clone(), value.clone())));
        }
    }
    all
}

/// The package behind a dependency's key, which may have been renamed here or in the workspace.
fn package_of(key: &str, value: &Value, workspace: &Table) -> String {
    let renamed = |value: &Value| value.get("package").and_then(Value::as_str).map(str::to_owned);
    let shared = || workspace.get("workspace")?.get("dependencies")?.get(key);
    renamed(value).or_else(|| shared().and_then(renamed)).unwrap_or_else(|| key.to_owned())
}

fn in_source(room: &Room, file: &TextFile) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (line, path) in paths(&tokens(&file.text)) {
        let package = path.split("::").next().unwrap_or_default().replace('_', "-");
        if let Some(advice) = refusal(room, &package) {
            findings.push(Finding::new(file, line, advice));
        }
    }
    findings
}

/// Returns why a crate may not import a package; `None` when it may, or when the package is not one of ours.
fn refusal(room: &Room, package: &str) -> Option<String> {
    let is_ours = ROOMS.iter().any(|other| other.package == package);
    if !is_ours || package == room.package || room.may_import.contains(&package) {
        return None;
    }
    let folder = room.folder;
    Some(match room.may_import {
        [] => format!("`{folder}` imports nothing of ours: remove `{package}`, or move this code to another room"),
        may => format!("`{folder}` may import only {}: remove `{package}`, or move this code", may.join(", ")),
    })
}

fn line_of(text: &str, wanted: &str) -> usize {
    1 + text.lines().position(|line| line.contains(wanted)).unwrap_or(0)
}

fn line_of_key(text: &str, key: &str) -> usize {
    let starts = |line: &str| {
        let rest = line.trim_start().trim_start_matches('"').strip_prefix(key);
        rest.is_some_and(|rest| rest.starts_with(['.', ' ', '=', '"']))
    };
    let in_header = || text.lines().position(|line| line.starts_with('[') && line.contains(key));
    1 + text.lines().position(starts).or_else(in_header).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> Vec<String> {
        let workspace = "[workspace]\nmembers = [\"core\"]\n[workspace.dependencies]\n\
            rules = { package = \"palisade-core\", path = \"core\" }\n";
        let files = [TextFile::new("Cargo.toml", workspace), TextFile::new(path, text)];
        forbidden_imports(&files).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_forbidden_dependency_is_found_however_it_is_written() {
        for (path, manifest) in [
            ("core/Cargo.toml", "[dependencies]\npalisade.workspace = true\n"),
            ("lib/Cargo.toml", "[dev-dependencies]\npalisade-testbench = { path = \"../testbench\" }\n"),
            ("fence/Cargo.toml", "[build-dependencies]\nx = { package = \"palisade\", path = \"../lib\" }\n"),
            ("server/Cargo.toml", "[target.'cfg(unix)'.dependencies]\npalisade-fence.workspace = true\n"),
            ("server/Cargo.toml", "[dependencies.palisade-cli]\nworkspace = true\n"),
            ("cli/Cargo.toml", "[dependencies]\npalisade-core.workspace = true\n"),
        ] {
            assert_eq!(found(path, manifest).len(), 1, "{path}: {manifest}");
        }
        let message = &found("lib/Cargo.toml", "[package]\n[dependencies]\npalisade-server.workspace = true\n")[0];
        assert!(message.starts_with("lib/Cargo.toml:3: `lib` may import only palisade-core: remove"), "{message}");
    }

    #[test]
    fn a_dependency_renamed_in_the_workspace_is_seen_through() {
        assert_eq!(found("cli/Cargo.toml", "[dependencies]\nrules.workspace = true\n").len(), 1);
        assert_eq!(found("lib/Cargo.toml", "[dependencies]\nrules.workspace = true\n").len(), 0);
    }

    #[test]
    fn a_forbidden_path_in_the_code_is_found() {
        for (path, source) in [
            ("core/src/lib.rs", "use palisade_fence::FenceState;"),
            ("core/tests/x.rs", "use palisade_testbench as bench;"),
            ("lib/src/engine/x.rs", "fn f() { palisade_server::start() }"),
            ("server/src/lib.rs", "use palisade::connect;"),
            ("server/src/lib.rs", "pub use ::palisade::connect;"),
            ("fence/src/lib.rs", "use {palisade_server::Disk, std::io};"),
            ("cli/src/main.rs", "\n\nuse palisade_core::Token;"),
        ] {
            assert_eq!(found(path, source).len(), 1, "{path}: {source}");
        }
    }

    #[test]
    fn imports_of_the_table_are_allowed() {
        for (path, source) in [
            ("lib/src/lib.rs", "use palisade_core::Token; use palisade::connect;"),
            ("server/src/lib.rs", "use palisade_core::{Token, Ttl}; // palisade::connect"),
            (
                "cli/src/main.rs",
                "use palisade::connect; use palisade_server::Config; use palisade_fence::FenceState;",
            ),
            ("testbench/src/lib.rs", "use palisade_core::Token; use palisade::connect; use palisade_server::x;"),
            ("server/src/lib.rs", "use crate::engine::palisade::Service; let palisade = \"palisade::connect\";"),
        ] {
            assert_eq!(found(path, source), Vec::<String>::new(), "{path}: {source}");
        }
    }

    #[test]
    fn a_package_outside_the_rooms_is_found() {
        let files = [TextFile::new("Cargo.toml", "[workspace]\nmembers = [\n  \"core\",\n  \"attic\",\n]\n")];
        let findings = forbidden_imports(&files);
        assert_eq!((findings.len(), findings[0].line), (1, 4));
    }
}
