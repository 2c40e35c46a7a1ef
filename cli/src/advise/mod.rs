//! `palisade advise`: from a few answers to the right tool. Often that is not a lock.

mod answers;
mod ask;
mod recipes;
mod show;
mod tree;

use std::io::{self, IsTerminal, Write};

use self::answers::{Answers, Question};
use self::tree::{Advice, Next};
use crate::outcome::{Failure, unless_closed};

/// For `--help`.
pub(crate) const EXAMPLES: &str = "\
Examples:
  palisade advise
  palisade advise --if-two-hold wasted-work --work own
  palisade advise --if-two-hold damage --work change --writes-to can-check

The questions appear on stderr and the advice on stdout, so `palisade advise --json > advice.json` works too.";

/// The options of `palisade advise`.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    #[command(flatten)]
    answers: Answers,

    /// Print the advice as JSON: one object, whose `schema` number changes when its fields do
    #[arg(long)]
    json: bool,
}

/// Finds the advice, asking for what the options leave open, and prints it.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let (answers, advice) = complete(options.answers.clone())?;
    if answers != options.answers {
        // A person was asked: set the advice apart from the questions.
        writeln!(io::stderr())?;
    }
    let mut out = anstream::stdout().lock();
    unless_closed(match options.json {
        true => show::as_json(&answers, &advice, &mut out),
        false => show::as_text(&advice, &mut out),
    })
}

/// Asks until the tree has an answer. Asks nothing where no terminal can show the question and answer it.
fn complete(mut answers: Answers) -> Result<(Answers, Advice), Failure> {
    let person = io::stdin().is_terminal() && io::stderr().is_terminal();
    loop {
        let question = match tree::advise(&answers) {
            Next::Use(advice) => return Ok((answers, advice)),
            Next::Ask(question) => question,
        };
        if !person {
            return Err(missing("cannot ask questions: stdin or stderr is not a terminal", &answers));
        }
        match ask::ask(question, &mut io::stdin().lock(), &mut anstream::stderr().lock())? {
            Some(word) => answers.set(question, &word),
            None => return Err(missing("the input ended before the questions did", &answers)),
        }
    }
}

/// Names the options that would have made asking unnecessary.
fn missing(why: &str, answers: &Answers) -> Failure {
    let open = tree::open_questions(answers);
    let mut message = format!("{why}. Give the answers as options:\n{}", lines_for(&open.always));
    if !open.sometimes.is_empty() {
        message.push_str(&format!("and, depending on those:\n{}", lines_for(&open.sometimes)));
    }
    message.push_str("`palisade advise --help` says what each one means.");
    Failure::Misuse(message)
}

fn lines_for(questions: &[Question]) -> String {
    let line = |question: &Question| {
        let words: Vec<_> = question.choices().into_iter().map(|choice| choice.word).collect();
        format!("  --{} <{}>\n", question.flag(), words.join("|"))
    };
    questions.iter().map(line).collect()
}
