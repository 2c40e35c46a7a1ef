use super::tree::{Finding, TextFile};

/// The documents that a newcomer reads first, and the most words that each may have.
const LIMITS: [(&str, usize); 2] = [("README.md", 1000), ("ARCHITECTURE.md", 2000)];

/// Documents with more words than they may have, counted as `wc -w` does.
pub fn overlong_documents(files: &[TextFile]) -> Vec<Finding> {
    let limit = |file: &TextFile| LIMITS.iter().find(|(path, _)| *path == file.path).map(|(_, limit)| *limit);
    let mut findings = Vec::new();
    for (file, limit) in files.iter().filter_map(|file| Some((file, limit(file)?))) {
        let words = file.text.split_whitespace().count();
        if words > limit {
            let advice =
                format!("{words} words, {limit} at most: move details to a page in docs, or to a README below");
            findings.push(Finding::new(file, 1, advice));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_word_too_many_is_found() {
        let file = |path: &str, words: usize| TextFile::new(path, &"word\n".repeat(words));
        let found = |path: &str, words: usize| overlong_documents(&[file(path, words)]).len();
        assert_eq!((found("README.md", 1000), found("README.md", 1001)), (0, 1));
        assert_eq!((found("ARCHITECTURE.md", 2000), found("ARCHITECTURE.md", 2001)), (0, 1));
        assert_eq!(found("docs/README.md", 5000), 0);
    }
}
