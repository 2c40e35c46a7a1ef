//! `palisade tokens`: raises the tokens of an engine.

use std::io::{self, Write};

use clap::Subcommand;
use palisade::Token;
use palisade::engine::Raised;
use serde::Serialize;

use crate::outcome::{Failure, unless_closed};
use crate::settings::Settings;
use crate::text::{parse_token, print_json, shell_word};

/// For `--help`.
pub(crate) const EXAMPLES: &str = "\
Examples:
  palisade tokens raise --above 38
  palisade tokens raise --above 38 --url postgres://db/locks --json

docs/commands/tokens.md says when they have to be raised.";

const RAISE_EXAMPLES: &str = "\
Examples:
  palisade tokens raise --above 38
  palisade tokens raise --above 38 --url palisade://locks:7420
  palisade tokens raise --above 38 --url redis://cache --json

`palisade fence check STORE RESOURCE --token T` prints the command with the number that a resource needs. Tokens are \
never lowered: where they are above the number already, nothing changes and the exit code is 0.";

/// The version of [`Report`], for programs: increased when a field changes its name, place or meaning.
const SCHEMA: u32 = 1;

/// The subcommands of `palisade tokens`.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Have an engine give only tokens above a number
    ///
    /// For a resource that was sealed under another engine, or under older data of this one, whose tokens were higher: it
    /// refuses every token of this engine until they are above its mark. Every lock that is granted afterwards has a
    /// token above the number, on all locks of the engine. Locks that are held keep their tokens; PostgreSQL, MySQL, etcd,
    /// ZooKeeper and Consul refuse while a lock is held with a lower token. Users of the service need the right `admin` for all locks.
    #[command(after_help = RAISE_EXAMPLES)]
    Raise(Options),
}

/// The options of `palisade tokens raise`.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// The mark of the resource: every later token is above it. At most 4503599627370496, so that half of all tokens are left
    #[arg(long, value_name = "N", value_parser = parse_raise)]
    above: Token,

    /// Print JSON: one object, whose `schema` number changes when its fields do
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report<'a> {
    schema: u32,
    engine: &'a str,
    above: u64,
    /// False if the tokens were above it already.
    raised: bool,
}

/// Runs `palisade tokens`.
pub(crate) async fn run(settings: &Settings, command: &Command) -> Result<(), Failure> {
    let Command::Raise(options) = command;
    let palisade = settings.connect().await?;
    let raised = palisade.raise_tokens(options.above).await?;
    let engine = palisade.guarantees().engine;
    let mut out = anstream::stdout().lock();
    unless_closed(match options.json {
        true => {
            let (above, raised) = (options.above.get(), raised == Raised::Now);
            print_json(&Report { schema: SCHEMA, engine, above, raised }, &mut out)
        }
        false => as_text(engine, options.above, raised, &mut out),
    })
}

fn as_text(engine: &str, above: Token, raised: Raised, out: &mut impl Write) -> io::Result<()> {
    match raised {
        Raised::Now => writeln!(out, "Raised: every token that {engine} gives from now on is above {above}.")?,
        Raised::Before => writeln!(out, "The tokens of {engine} are already above {above}. Nothing has changed.")?,
    }
    out.flush()
}

/// Parses a number that tokens can be raised above.
pub(crate) fn parse_raise(text: &str) -> Result<Token, String> {
    let max = Token::HIGHEST_RAISE;
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    // Also for a number above the highest token, so that there is one limit.
    if is_number && text.parse().map_or(true, |number: u64| number > max.get()) {
        return Err(format!("tokens can be raised above {max} at most: half of all tokens must be left"));
    }
    parse_token(text)
}

/// Returns the command line that raises an engine's tokens above a mark. Without a URL it has a placeholder.
pub(crate) fn raise_command(above: Token, url: Option<&str>) -> String {
    let url = url.map_or_else(|| "ENGINE".to_owned(), shell_word);
    format!("palisade tokens raise --above {above} --url {url}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_can_be_pasted_into_a_shell() {
        let mark = Token::new(38).expect("a token");
        assert_eq!(raise_command(mark, None), "palisade tokens raise --above 38 --url ENGINE");
        let redis = Some("redis://a:6379?namespace=it's&replicas=1");
        let expected = r"palisade tokens raise --above 38 --url 'redis://a:6379?namespace=it'\''s&replicas=1'";
        assert_eq!(raise_command(mark, redis), expected);
    }

    #[test]
    fn a_number_that_would_use_up_the_tokens_is_refused() {
        assert_eq!(parse_raise("4503599627370496").map(Token::get), Ok(4_503_599_627_370_496));
        for number in ["4503599627370497", "9007199254740992", "99999999999999999999"] {
            let refused = parse_raise(number).unwrap_err();
            assert!(refused.contains("4503599627370496 at most"), "{refused}");
        }
        assert!(parse_raise("0").is_err() && parse_raise("-1").is_err());
    }
}
