//! Asks the user one question, over any pair of streams.

use std::io::{self, BufRead, Write};

use clap::builder::styling::{AnsiColor, Style};

use super::answers::{Choice, Question};

/// Asks until the answer is one of the choices: its number, its word, or a prefix of only one word. `None` when the input
/// ends.
pub(super) fn ask(
    question: Question,
    input: &mut impl BufRead,
    output: &mut impl Write,
) -> io::Result<Option<String>> {
    let choices = question.choices();
    print_question(question, &choices, output)?;
    loop {
        write!(output, "> ")?;
        output.flush()?;
        let mut line = String::new();
        if input.read_line(&mut line)? == 0 {
            writeln!(output)?;
            return Ok(None);
        }
        match pick(&choices, line.trim()) {
            Some(choice) => return Ok(Some(choice.word.clone())),
            None => writeln!(output, "Please type a number from 1 to {}, or one of the words.", choices.len())?,
        }
    }
}

fn print_question(question: Question, choices: &[Choice], output: &mut impl Write) -> io::Result<()> {
    let (bold, cyan) = (Style::new().bold(), AnsiColor::Cyan.on_default());
    writeln!(output, "\n{bold}{}{bold:#}", question.text())?;
    let width = choices.iter().map(|choice| choice.word.len()).max().unwrap_or(0);
    for (number, Choice { word, meaning }) in (1..).zip(choices) {
        match meaning.is_empty() {
            true => writeln!(output, "  {number}  {cyan}{word}{cyan:#}")?,
            false => writeln!(output, "  {number}  {cyan}{word:width$}{cyan:#}  {meaning}")?,
        }
    }
    Ok(())
}

fn pick<'a>(choices: &'a [Choice], typed: &str) -> Option<&'a Choice> {
    if let Ok(number) = typed.parse::<usize>() {
        return number.checked_sub(1).and_then(|index| choices.get(index));
    }
    let typed = typed.to_lowercase();
    if let Some(exact) = choices.iter().find(|choice| choice.word == typed) {
        return Some(exact);
    }
    let mut starting = choices.iter().filter(|choice| !typed.is_empty() && choice.word.starts_with(&typed));
    starting.next().filter(|_| starting.next().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(question: Question, typed: &str) -> (Option<String>, String) {
        let mut output = anstream::StripStream::new(Vec::new());
        let answer = ask(question, &mut typed.as_bytes(), &mut output).unwrap();
        (answer, String::from_utf8(output.into_inner()).unwrap())
    }

    #[test]
    fn a_number_a_word_and_an_unambiguous_prefix_are_answers() {
        for typed in ["2\n", "damage\n", "  Damage \n", "d\n", "2"] {
            assert_eq!(answer(Question::IfTwoHold, typed).0.as_deref(), Some("damage"), "{typed:?}");
        }
    }

    #[test]
    fn anything_else_is_asked_again() {
        for typed in ["", "0", "3", "-1", "99999999999999999999999", "o", "\u{1F512}"] {
            let (answer, output) = answer(Question::Work, &format!("{typed}x\nonce\n"));
            assert_eq!(answer.as_deref(), Some("once"));
            assert!(output.contains("Please type a number from 1 to 4"), "{typed:?}: {output}");
        }
        // Two words start with it.
        assert_eq!(answer(Question::WritesTo, "can\none-r\n").0.as_deref(), Some("one-record"));
    }

    #[test]
    fn the_end_of_input_is_no_answer() {
        assert_eq!(answer(Question::Conflicts, "").0, None);
        assert_eq!(answer(Question::Conflicts, "maybe\n").0, None);
    }

    #[test]
    fn the_prompt_shows_every_choice() {
        let choices = "\nWhat if two processes do it at once?\n  \
            1  wasted-work  Some work is done twice; the result is still right\n  \
            2  damage       Data is corrupted, an update is lost, a card is charged twice\n> ";
        assert_eq!(answer(Question::IfTwoHold, "1\n").1, choices);
        let twice = "\nCan each key (customer, shard, topic) have one process at a time that does all its work?\n  \
            1  yes\n  \
            2  no\n\
            > Please type a number from 1 to 2, or one of the words.\n> ";
        assert_eq!(answer(Question::CanAssign, "what\nno\n").1, twice);
    }
}
