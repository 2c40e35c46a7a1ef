//! Files and folders.

use std::sync::Arc;

use palisade_fence::file::{Answer, Edit, FencedFile, FencedFolder, Query};
use palisade_fence::{Error, ErrorKind, Sealed, Token};
use palisade_testbench::fencing::Subject;
use tempfile::TempDir;

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
        ["", "/", "..", "nul\0", "nul\0/file"].map(str::to_owned).to_vec()
    }
}

#[derive(Clone)]
struct Folders(Files);

impl Subject for Folders {
    type Resource = FencedFolder;

    async fn open(&self, name: &str) -> Result<FencedFolder, Error> {
        let path = self.0.0.path().join(name);
        if name.starts_with("fencing") {
            std::fs::create_dir_all(&path).expect("it can be made");
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
}

palisade_testbench::fencing!(file, Files::new());
palisade_testbench::fencing!(folder, Folders(Files::new()));

#[tokio::test]
async fn a_bad_name_within_a_folder_is_refused_and_changes_nothing() {
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
}
