//! The advice, as text or as JSON.

use std::collections::BTreeMap;
use std::io::{self, Write};

use clap::builder::styling::{AnsiColor, Style};
use serde::Serialize;

use super::answers::{Answers, Question};
use super::recipes::Recipe;
use super::tree::{self, Advice, Next};
use crate::text::print_json;

/// The version of [`Report`], for programs: increased when a field changes its name, place or meaning.
const SCHEMA: u32 = 1;

#[derive(Serialize)]
struct Report<'a> {
    schema: u32,
    tool: &'a str,
    name: &'a str,
    why: &'a str,
    steps: &'a [&'a str],
    example: &'a str,
    beware: &'a [&'a str],
    page: &'a str,
    answers: BTreeMap<&'a str, String>,
}

/// Writes the advice as text.
pub(super) fn as_text(advice: &Advice, out: &mut impl Write) -> io::Result<()> {
    let recipe = Recipe::of(advice.tool);
    let (title, dim) = (AnsiColor::Green.on_default().bold(), Style::new().dimmed());
    writeln!(out, "{title}Use {}.{title:#}", recipe.name)?;
    paragraph(out, "", advice.why)?;
    writeln!(out)?;
    for (number, step) in (1..).zip(recipe.steps) {
        paragraph(out, &format!("  {number}. "), step)?;
    }
    writeln!(out)?;
    for line in recipe.example.lines() {
        writeln!(out, "{dim}    {line}{dim:#}")?;
    }
    writeln!(out)?;
    for warning in recipe.beware {
        paragraph(out, "Beware: ", warning)?;
    }
    writeln!(out, "More: {}", recipe.page)?;
    out.flush()
}

/// Writes the advice as JSON.
pub(super) fn as_json(answers: &Answers, advice: &Advice, out: &mut impl Write) -> io::Result<()> {
    let recipe = Recipe::of(advice.tool);
    let report = Report {
        schema: SCHEMA,
        tool: recipe.id,
        name: recipe.name,
        why: advice.why,
        steps: recipe.steps,
        example: recipe.example,
        beware: recipe.beware,
        page: recipe.page,
        answers: used(answers),
    };
    print_json(&report, out)
}

/// Returns only the answers that led to the advice.
fn used(answers: &Answers) -> BTreeMap<&'static str, String> {
    let mut followed = Answers::default();
    let mut used = BTreeMap::new();
    while let Next::Ask(question) = tree::advise(&followed) {
        let Some(word) = answers.get(question) else { break };
        followed.set(question, &word);
        used.insert(Question::flag(question), word);
    }
    used
}

/// Writes `text` after `lead`, wrapped at 100 columns, later lines indented as far as the lead.
fn paragraph(out: &mut impl Write, lead: &str, text: &str) -> io::Result<()> {
    const WIDTH: usize = 100;
    let mut column = lead.chars().count();
    let indent = column;
    write!(out, "{lead}")?;
    for (index, word) in text.split_whitespace().enumerate() {
        let length = word.chars().count();
        if index > 0 && column + 1 + length > WIDTH {
            write!(out, "\n{:indent$}", "")?;
            column = indent;
        } else if index > 0 {
            write!(out, " ")?;
            column += 1;
        }
        write!(out, "{word}")?;
        column += length;
    }
    writeln!(out)
}
