use super::tree::{Finding, TextFile};

/// Words without a referent. A sentence names the thing in the code that acts.
const NOBODY: [&str; 7] = ["Who", "Whoever", "Whom", "Somebody", "Nobody", "Everybody", "Anybody"];

/// Comments with a sentence that begins with one of these words.
pub fn sentences_without_actor(files: &[TextFile]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in files.iter().filter(|file| file.is_rust()) {
        for (number, line) in file.text.lines().enumerate() {
            if let Some(word) = comment(line).and_then(opener) {
                let advice =
                    format!("a sentence begins with \"{word}\": name the thing that acts (the client, the keeper)");
                findings.push(Finding::new(file, number + 1, advice));
            }
        }
    }
    findings
}

/// The text of a line that is only a comment.
fn comment(line: &str) -> Option<&str> {
    Some(line.trim_start().strip_prefix("//")?.trim_start_matches(['/', '!']).trim())
}

fn opener(comment: &str) -> Option<&'static str> {
    let begins = |text: &str, word: &str| text.strip_prefix(word).is_some_and(|rest| rest.starts_with([' ', ',']));
    let is_question = comment.ends_with('?');
    let mut sentences = comment.split(". ");
    sentences.find_map(|sentence| NOBODY.into_iter().find(|word| begins(sentence, word))).filter(|_| !is_question)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sentence_without_an_actor_is_found_in_a_comment_only() {
        let found = |text: &str| sentences_without_actor(&[TextFile::new("lib/src/lib.rs", text)]).len();
        for text in ["/// Who asks waits.", "    // It ends. Nobody waits.", "//! Somebody, or not."] {
            assert_eq!(found(text), 1, "{text}");
        }
        for text in
            ["/// The client that asks waits.", "let x = \"Nobody waits.\";", "// Who holds it?", "// Whole files."]
        {
            assert_eq!(found(text), 0, "{text}");
        }
    }
}
