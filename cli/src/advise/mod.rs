//! `palisade advise`: asks a few questions and names the right tool, which is often not a lock.

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

/// Asks the questions that the options leave open, and prints the advice.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let (answers, advice) = complete(options.answers.clone())?;
    if answers != options.answers {
        // Questions were asked: separate the advice from them.
        writeln!(io::stderr())?;
    }
    let mut out = anstream::stdout().lock();
    unless_closed(match options.json {
        true => show::as_json(&answers, &advice, &mut out),
        false => show::as_text(&advice, &mut out),
    })
}

/// Asks until the decision tree has a result. Fails if a question must be asked and there is no terminal.
fn complete(mut answers: Answers) -> Result<(Answers, Advice), Failure> {
    let can_ask = io::stdin().is_terminal() && io::stderr().is_terminal();
    loop {
        let question = match tree::advise(&answers) {
            Next::Use(advice) => return Ok((answers, advice)),
            Next::Ask(question) => question,
        };
        if !can_ask {
            return Err(missing("cannot ask questions: stdin or stderr is not a terminal", &answers));
        }
        match ask::ask(question, &mut io::stdin().lock(), &mut anstream::stderr().lock())? {
            Some(word) => answers.set(question, &word),
            None => return Err(missing("the input ended before the questions did", &answers)),
        }
    }
}

/// Returns an error that lists the missing options.
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
