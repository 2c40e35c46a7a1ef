//! The questions and the answers to them. The texts here are both the prompts and the help of the options.

use clap::ValueEnum;

/// The answers that are known so far.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
#[command(next_help_heading = "Answers")]
pub(crate) struct Answers {
    #[arg(long, value_enum, value_name = "ANSWER", help = Question::IfTwoHold.text())]
    pub(crate) if_two_hold: Option<IfTwoHold>,

    #[arg(long, value_enum, value_name = "ANSWER", help = Question::Work.text())]
    pub(crate) work: Option<Work>,

    #[arg(long, value_enum, value_name = "ANSWER", help = Question::CanAssign.text())]
    pub(crate) can_assign: Option<YesNo>,

    #[arg(long, value_enum, value_name = "ANSWER", help = Question::WritesTo.text())]
    pub(crate) writes_to: Option<WritesTo>,

    #[arg(long, value_enum, value_name = "ANSWER", help = Question::Conflicts.text())]
    pub(crate) conflicts: Option<Conflicts>,

    #[arg(long, value_enum, value_name = "ANSWER", help = Question::OneTransaction.text())]
    pub(crate) one_transaction: Option<YesNo>,
}

/// What happens when two processes do the work at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum IfTwoHold {
    /// Some work is done twice; the result is still right
    WastedWork,
    /// Data is corrupted, an update is lost, a card is charged twice
    Damage,
}

/// The kind of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Work {
    /// Read something, compute, write it back
    Change,
    /// Do one thing exactly once: charge a card, send a message, create an order
    Once,
    /// Hand many jobs to many workers, each job to one of them
    ShareOut,
    /// Be the one process that keeps doing something: a scheduler, the owner of a shard
    Own,
}

/// Where the result ends up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum WritesTo {
    /// One row, document or object that has a version or can be given one
    OneRecord,
    /// Several rows of one database
    OneDatabase,
    /// Files, a service of yours, several stores: each can check a number as part of the write
    CanCheck,
    /// Something that cannot check anything: a device, a third party's API
    CannotCheck,
}

/// How often two writers meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Conflicts {
    /// So rarely that doing the work again is cheap
    Rare,
    /// So often that most attempts would be thrown away
    Often,
}

/// The answer to a yes-or-no question.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum YesNo {
    Yes,
    No,
}

/// One question, in the order in which they are asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Question {
    IfTwoHold,
    Work,
    CanAssign,
    WritesTo,
    Conflicts,
    OneTransaction,
}

/// One answer that a question accepts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Choice {
    /// What the user types.
    pub(crate) word: String,
    /// What it means; empty where the word says it.
    pub(crate) meaning: String,
}

impl Question {
    /// Every question.
    pub(crate) const ALL: [Self; 6] =
        [Self::IfTwoHold, Self::Work, Self::CanAssign, Self::WritesTo, Self::Conflicts, Self::OneTransaction];

    /// Returns the question's text.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::IfTwoHold => "What if two processes do it at once?",
            Self::Work => "What kind of work is it?",
            Self::CanAssign => {
                "Can each key (customer, shard, topic) have one process at a time that does all its work?"
            }
            Self::WritesTo => "Where does the result end up?",
            Self::Conflicts => "How often do two of them want the same thing at the same time?",
            Self::OneTransaction => {
                "Does it all fit in one short database transaction, with no call to anything else in between?"
            }
        }
    }

    /// Returns the name of the option that answers it, without the dashes.
    pub(crate) fn flag(self) -> &'static str {
        match self {
            Self::IfTwoHold => "if-two-hold",
            Self::Work => "work",
            Self::CanAssign => "can-assign",
            Self::WritesTo => "writes-to",
            Self::Conflicts => "conflicts",
            Self::OneTransaction => "one-transaction",
        }
    }

    /// Returns the answers that it accepts.
    pub(crate) fn choices(self) -> Vec<Choice> {
        match self {
            Self::IfTwoHold => choices::<IfTwoHold>(),
            Self::Work => choices::<Work>(),
            Self::CanAssign | Self::OneTransaction => choices::<YesNo>(),
            Self::WritesTo => choices::<WritesTo>(),
            Self::Conflicts => choices::<Conflicts>(),
        }
    }
}

impl Answers {
    /// Sets the answer to one of the words of [`Question::choices`]; any other word leaves the question open.
    pub(crate) fn set(&mut self, question: Question, word: &str) {
        match question {
            Question::IfTwoHold => self.if_two_hold = parsed(word),
            Question::Work => self.work = parsed(word),
            Question::CanAssign => self.can_assign = parsed(word),
            Question::WritesTo => self.writes_to = parsed(word),
            Question::Conflicts => self.conflicts = parsed(word),
            Question::OneTransaction => self.one_transaction = parsed(word),
        }
    }

    /// Returns the answer to a question, as a word.
    pub(crate) fn get(&self, question: Question) -> Option<String> {
        match question {
            Question::IfTwoHold => self.if_two_hold.map(word_of),
            Question::Work => self.work.map(word_of),
            Question::CanAssign => self.can_assign.map(word_of),
            Question::WritesTo => self.writes_to.map(word_of),
            Question::Conflicts => self.conflicts.map(word_of),
            Question::OneTransaction => self.one_transaction.map(word_of),
        }
    }
}

fn choices<T: ValueEnum>() -> Vec<Choice> {
    let values = T::value_variants().iter().filter_map(T::to_possible_value);
    values
        .map(|value| Choice {
            word: value.get_name().to_owned(),
            meaning: value.get_help().map(ToString::to_string).unwrap_or_default(),
        })
        .collect()
}

fn parsed<T: ValueEnum>(word: &str) -> Option<T> {
    T::from_str(word, false).ok()
}

fn word_of<T: ValueEnum>(value: T) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_choice_can_be_set_and_read_back() {
        for question in Question::ALL {
            for choice in question.choices() {
                let mut answers = Answers::default();
                answers.set(question, &choice.word);
                assert_eq!(answers.get(question), Some(choice.word));
            }
        }
    }

    #[test]
    fn an_unknown_word_leaves_the_question_open() {
        for question in Question::ALL {
            let mut answers = Answers::default();
            answers.set(question, "perhaps");
            assert_eq!(answers, Answers::default());
        }
    }
}
