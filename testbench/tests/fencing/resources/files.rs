//! Files and folders.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::process::Command;
use std::sync::Arc;

use palisade_fence::file::{Answer, Edit, FencedFile, FencedFolder, Query};
use palisade_fence::{Error, ErrorKind, Sealed, Token};
use palisade_testbench::bounded::output;
use palisade_testbench::fencing::Subject;
use tempfile::TempDir;

use super::check;

#[derive(Clone)]
struct Files(Arc<TempDir>);

impl Files {
    fn new() -> Files {
        Files(Arc::new(tempfile::tempdir().expect("a folder")))
    }
}

fn number(contents: Option<Vec<u8>>) -> u64 {
    contents.map_or(0, |bytes| String::from_utf8(bytes).expect("text").parse().expect("a number"))
}

impl Subject for Files {
    type Resource = FencedFile;

    async fn open(&self, name: &str) -> Result<FencedFile, Error> {
        match name {
            "" => FencedFile::open(""),
            name => FencedFile::open(self.0.path().join(name)),
        }
    }

    fn get(&self) {}

    fn set(&self, number: u64) -> Option<Vec<u8>> {
        Some(number.to_string().into_bytes())
    }

    fn number(&self, answer: Option<Vec<u8>>) -> u64 {
        number(answer)
    }

    fn bad_names(&self) -> Vec<String> {
        let too_long = ["x".repeat(250), "x".repeat(256)];
        let names =
            ["", "/", "..", "nul\0", "nul\0/file", "ends/", ".palisade", ".palisade-mark", ".palisade-lock-z"];
        names.map(str::to_owned).into_iter().chain(too_long).collect()
    }

    fn impossible(&self) -> Vec<Option<Vec<u8>>> {
        Vec::new()
    }
}

#[derive(Clone)]
struct Folders(Files);

impl Subject for Folders {
    type Resource = FencedFolder;

    async fn open(&self, name: &str) -> Result<FencedFolder, Error> {
        let path = self.0.0.path().join(name);
        if name.starts_with("fencing") && !path.exists() {
            fs::create_dir_all(path.join("a folder")).expect("it can be made");
            symlink("nowhere", path.join("a link")).expect("it can be made");
            UnixListener::bind(path.join("a socket")).expect("it can be made");
            fs::write(path.join("two links"), "").expect("it can be made");
            fs::hard_link(path.join("two links"), path.join("another name")).expect("it can be made");
        }
        FencedFolder::open(path)
    }

    fn get(&self) -> Query {
        Query::Get { name: "number".to_owned() }
    }

    fn set(&self, number: u64) -> Vec<Edit> {
        vec![
            Edit::Put { name: "number".to_owned(), contents: number.to_string().into_bytes() },
            Edit::Put { name: format!("written-{number}"), contents: Vec::new() },
            Edit::Remove { name: format!("written-{}", number.wrapping_sub(1)) },
        ]
    }

    fn number(&self, answer: Answer) -> u64 {
        match answer {
            Answer::Contents(contents) => number(contents),
            Answer::Names(_) => panic!("it was not asked for"),
        }
    }

    fn bad_names(&self) -> Vec<String> {
        ["not there", "nul\0"].map(str::to_owned).to_vec()
    }

    fn impossible(&self) -> Vec<Vec<Edit>> {
        let put = |name: &str| Edit::Put { name: name.to_owned(), contents: b"7".to_vec() };
        let remove = |name: &str| Edit::Remove { name: name.to_owned() };
        let too_long = "x".repeat(256);
        vec![
            vec![put("number"), put("a folder")],
            vec![put("number"), remove("a folder")],
            vec![put("number"), put(&too_long)],
            vec![put("number"), remove(&too_long)],
            vec![put("number"), put("a link")],
            vec![put("number"), put("a socket")],
            vec![put("number"), put("two links")],
        ]
    }
}

palisade_testbench::fencing!(file, Files::new());
palisade_testbench::fencing!(folder, Folders(Files::new()));

#[test]
fn a_bad_name_within_a_folder_is_refused_and_changes_nothing() {
    check(async {
        let folder = tempfile::tempdir().expect("a folder");
        let token = Token::new(1).expect("a token");
        let fenced = FencedFolder::open(folder.path()).expect("a folder");
        let mut sealed = Sealed::seal(fenced, token).await.expect("it is new");
        for name in ["", ".", "..", "../up", "a/b", "nul\0", ".palisade", ".palisade-lock"] {
            let put = sealed.put(name, "x").await.expect_err("it is refused");
            assert!(matches!(put.kind(), ErrorKind::Misuse { .. }), "{put}");
            let got = sealed.get(name).await.expect_err("it is refused");
            assert!(matches!(got.kind(), ErrorKind::Misuse { .. }), "{got}");
        }
        let twice = |contents: &str| Edit::Put { name: "twice".to_owned(), contents: contents.as_bytes().to_vec() };
        let error = sealed.change(vec![twice("one"), twice("two")]).await.expect_err("it is refused");
        assert!(matches!(error.kind(), ErrorKind::Misuse { .. }), "{error}");
        assert_eq!(sealed.list().await.expect("it is sealed"), Vec::<String>::new());
        sealed.put("good", "x").await.expect("the handle is as good as before");
    });
}

fn token(number: u64) -> Token {
    Token::new(number).expect("a token")
}

/// Why a file cannot be fenced.
fn misuse(opened: Result<FencedFile, Error>) -> String {
    let error = opened.expect_err("it must be refused");
    assert!(matches!(error.kind(), ErrorKind::Misuse { .. }), "{error} ({:?})", error.kind());
    error.to_string()
}

/// Asserts that every write is refused with this reason.
async fn rejected(sealed: &mut Sealed<FencedFile>, wanted: &str) {
    for outcome in [sealed.replace("new").await, sealed.remove().await] {
        let error = outcome.expect_err("it must be refused");
        assert!(!error.may_have_taken_effect() && error.to_string().contains(wanted), "{error}");
    }
}

#[test]
fn one_file_has_one_mark_however_its_path_is_spelled() {
    check(async {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path();
        fs::create_dir(path.join("data")).expect("a folder");
        symlink("data", path.join("current")).expect("a link");
        fs::write(path.join("data/orders"), "old").expect("it can be written");
        symlink("data/orders", path.join("link")).expect("a link");
        symlink("link", path.join("link to a link")).expect("a link");
        let spellings =
            ["data/orders", "data//./orders", "data/../data/orders", "current/orders", "link", "link to a link"];
        for (number, spelling) in (1..).zip(spellings) {
            let sealed =
                Sealed::seal(FencedFile::open(path.join(spelling)).expect("a file"), token(10 + number)).await;
            let mut sealed = sealed.expect("it is newer");
            sealed.replace(spelling).await.expect("it is sealed");
            for other in spellings {
                let other = FencedFile::open(path.join(other)).expect("a file");
                let error = Sealed::seal(other, token(9 + number)).await.expect_err("it is older");
                assert_eq!(error.overtaken_by(), Some(token(10 + number)), "{error}");
            }
            assert_eq!(fs::read_to_string(path.join("data/orders")).expect("it is there"), spelling);
        }
        assert!(fs::symlink_metadata(path.join("link")).expect("it is there").is_symlink(), "links stay");
        // A file that is not there yet, in a folder that has two names.
        let mut sealed = Sealed::seal(FencedFile::open(path.join("current/new")).expect("a file"), token(2))
            .await
            .expect("it is new");
        sealed.replace("new").await.expect("it is sealed");
        let other = FencedFile::open(path.join("data/new")).expect("a file");
        assert!(Sealed::seal(other, token(1)).await.is_err());
    });
}

#[test]
fn hard_links_and_dangling_links_are_refused() {
    check(async {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path();
        symlink("nowhere", path.join("dangling")).expect("a link");
        symlink("round", path.join("round")).expect("a link");
        assert!(misuse(FencedFile::open(path.join("dangling"))).contains("symbolic link"));
        assert!(misuse(FencedFile::open(path.join("round"))).contains("symbolic link"));
        assert!(fs::read_dir(path).expect("it is there").count() == 2, "nothing was made");

        let orders = path.join("orders");
        fs::write(&orders, "old").expect("it can be written");
        let file = FencedFile::open(&orders).expect("a file");
        let mut sealed = Sealed::seal(file.clone(), token(1)).await.expect("it is new");
        fs::hard_link(&orders, path.join("second")).expect("a link");
        assert!(misuse(FencedFile::open(&orders)).contains("hard link"));
        assert!(misuse(FencedFile::open(path.join("second"))).contains("hard link"));
        rejected(&mut sealed, "hard link").await;
        let error = Sealed::seal(file.clone(), token(2)).await.expect_err("it has two names");
        assert!(error.to_string().contains("hard link"), "{error}");
        assert_eq!(fs::read_to_string(&orders).expect("it is there"), "old");
        fs::remove_file(path.join("second")).expect("it is there");
        sealed.replace("new").await.expect("the handle is as good as before");

        // The file became a link after it was opened.
        fs::rename(&orders, path.join("elsewhere")).expect("it is there");
        symlink("elsewhere", &orders).expect("a link");
        rejected(&mut sealed, "symbolic link").await;
        assert!(Sealed::seal(file, token(2)).await.is_err());
        assert_eq!(fs::read_to_string(path.join("elsewhere")).expect("it is there"), "new");
    });
}

#[test]
fn a_file_that_became_a_folder_is_not_written_and_is_fenced_again_once_it_is_gone() {
    check(async {
        let folder = tempfile::tempdir().expect("a folder");
        let orders = folder.path().join("orders");
        let file = FencedFile::open(&orders).expect("a file");
        let mut sealed = Sealed::seal(file.clone(), token(1)).await.expect("it is new");
        fs::create_dir(&orders).expect("a folder");
        rejected(&mut sealed, "it is a folder").await;
        fs::remove_dir(&orders).expect("it is there");
        sealed.replace("new").await.expect("the handle is as good as before");
        let _ = Sealed::seal(file, token(2)).await.expect("it is newer");
    });
}

#[test]
fn sealing_a_file_leaves_the_marks_of_files_with_similar_names_alone() {
    check(async {
        let folder = tempfile::tempdir().expect("a folder");
        let similar = FencedFile::open(folder.path().join("z.palisade-1")).expect("a file");
        let mut newer = Sealed::seal(similar.clone(), token(34)).await.expect("it is new");
        newer.replace("new").await.expect("it is sealed");
        let mut z = Sealed::seal(FencedFile::open(folder.path().join("z")).expect("a file"), token(1)).await;
        z.as_mut().expect("it is new").replace("z").await.expect("it is sealed");
        let error = Sealed::seal(similar, token(33)).await.expect_err("it is older");
        assert_eq!(error.overtaken_by(), Some(token(34)), "{error}");
    });
}

#[test]
fn a_file_is_fenced_alone_or_with_its_folder_not_both() {
    check(async {
        let folder = tempfile::tempdir().expect("a folder");
        let (whole, path) = (FencedFolder::open(folder.path()).expect("a folder"), folder.path().join("orders"));
        let one = FencedFile::open(&path).expect("a file");
        let mut sealed = Sealed::seal(one.clone(), token(2)).await.expect("it is new");
        sealed.replace("new").await.expect("it is sealed");
        let error = Sealed::seal(whole.clone(), token(1)).await.expect_err("one of its files has a mark");
        assert!(matches!(error.kind(), ErrorKind::Misuse { .. }) && error.to_string().contains("orders"), "{error}");
        assert!(whole.peek().await.is_err(), "it says the same");
        assert!(!folder.path().join(".palisade-mark").exists(), "nothing has changed");

        let folder = tempfile::tempdir().expect("a folder");
        let mut sealed =
            Sealed::seal(FencedFolder::open(folder.path()).expect("a folder"), token(2)).await.expect("it is new");
        sealed.put("orders", "new").await.expect("it is sealed");
        let one = FencedFile::open(folder.path().join("orders")).expect("a file");
        let error = Sealed::seal(one, token(1)).await.expect_err("its folder has a mark");
        assert!(matches!(error.kind(), ErrorKind::Misuse { .. }), "{error}");
        assert_eq!(sealed.list().await.expect("it is sealed"), ["orders"]);
    });
}

/// Both are sealed for the first time, at the same moment.
#[test]
fn of_a_file_and_its_folder_only_one_gets_the_first_mark() {
    check(async {
        for round in 0..20 {
            let folder = tempfile::tempdir().expect("a folder");
            let whole = FencedFolder::open(folder.path()).expect("a folder");
            let one = FencedFile::open(folder.path().join("orders")).expect("a file");
            let sealing = (Sealed::seal(whole, token(1)), Sealed::seal(one, token(1)));
            let (whole, one) = tokio::join!(sealing.0, sealing.1);
            assert!(whole.is_ok() != one.is_ok(), "round {round}: {:?} {:?}", whole.err(), one.err());
        }
    });
}

/// Runs another test of this file in another process, through a shell script: `$1` is the folder.
fn elsewhere(script: &str, test: &str, folder: &std::path::Path) {
    let mut shell = Command::new("unshare");
    shell.args(["--mount", "sh", "-ec", &format!("cd \"$1\"; {script}; shift; exec \"$@\""), "sh"]).arg(folder);
    shell.arg(std::env::current_exe().expect("it runs")).args(["--exact", "--include-ignored", test]);
    let output = output(shell.env(FOLDER, folder)).expect("unshare is part of every Linux");
    let reply = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && reply.contains("1 passed"), "{reply}");
}

const FOLDER: &str = "PALISADE_TEST_FOLDER";

#[test]
fn a_file_that_is_a_mount_point_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    for name in ["orders", "mounted", "elsewhere"] {
        fs::write(folder.path().join(name), "old").expect("it can be written");
    }
    fs::create_dir(folder.path().join("read-only")).expect("a folder");
    let script =
        "mount --bind elsewhere mounted; mount --bind read-only read-only; mount -o remount,bind,ro read-only";
    elsewhere(script, "resources::files::where_a_file_is_a_mount_point", folder.path());
}

#[test]
#[ignore = "a_file_that_is_a_mount_point_is_refused runs it"]
fn where_a_file_is_a_mount_point() {
    let Some(folder) = std::env::var_os(FOLDER).map(std::path::PathBuf::from) else { return };
    check(async {
        assert!(misuse(FencedFile::open(folder.join("mounted"))).contains("mount"));
        let whole = FencedFolder::open(&folder).expect("a folder");
        let mut sealed = Sealed::seal(whole.clone(), token(1)).await.expect("it is new");
        let put = |name: &str| Edit::Put { name: name.to_owned(), contents: b"new".to_vec() };
        for edit in [put("mounted"), Edit::Remove { name: "mounted".to_owned() }] {
            let error = sealed.change(vec![put("orders"), edit]).await.expect_err("it is busy");
            assert!(!error.may_have_taken_effect() && error.to_string().contains("'mounted'"), "{error}");
        }
        for name in ["orders", "mounted"] {
            assert_eq!(fs::read_to_string(folder.join(name)).expect("it is there"), "old");
        }
        let mut next = Sealed::seal(whole, token(2)).await.expect("it is newer");
        next.put("orders", "new").await.expect("it is sealed");
        let fixed = FencedFolder::open(folder.join("read-only")).expect("a folder");
        let error = Sealed::seal(fixed, token(1)).await.expect_err("nothing can be written there");
        assert!(!error.may_have_taken_effect(), "{error}");
    });
}

#[test]
fn the_owners_of_a_folder_share_its_fences_whatever_their_umask() {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, mode) in [("shared", 0o770), ("public", 0o777), ("mine", 0o700)] {
        let path = folder.path().join(name);
        fs::create_dir_all(path.join("whole")).expect("a folder");
        for path in [&path, &path.join("whole")] {
            fs::set_permissions(path, Permissions::from_mode(mode)).expect("it is ours");
        }
        elsewhere("umask 077", "resources::files::where_others_may_read_nothing", &path);
        for path in [&path, &path.join("whole")] {
            for entry in fs::read_dir(path).expect("it is there") {
                let entry = entry.expect("it is there");
                if entry.file_name().to_string_lossy().starts_with(".palisade") {
                    let found = entry.metadata().expect("it is there").permissions().mode() & 0o777;
                    assert_eq!(found, mode & 0o666, "{name}: {:?}", entry.file_name());
                }
            }
        }
    }
}

#[test]
#[ignore = "the_owners_of_a_folder_share_its_fences_whatever_their_umask runs it"]
fn where_others_may_read_nothing() {
    let Some(folder) = std::env::var_os(FOLDER).map(std::path::PathBuf::from) else { return };
    check(async {
        let mut sealed = Sealed::seal(FencedFile::open(folder.join("orders")).expect("a file"), token(1))
            .await
            .expect("it is new");
        sealed.replace("new").await.expect("it is sealed");
        let whole = FencedFolder::open(folder.join("whole")).expect("a folder");
        let mut sealed = Sealed::seal(whole, token(1)).await.expect("it is new");
        sealed.put("orders", "new").await.expect("it is sealed");
    });
}
