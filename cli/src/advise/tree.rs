//! The decision tree: a pure function from answers to a tool, or to the next question.

use super::answers::{Answers, Conflicts, IfTwoHold, Question, Work, WritesTo, YesNo};

/// A tool to recommend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tool {
    IdempotencyKey,
    CompareAndSwap,
    Queue,
    OneWriter,
    DatabaseLock,
    EfficiencyLock,
    FencedLock,
}

/// A tool, and why these answers lead to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Advice {
    pub(crate) tool: Tool,
    pub(crate) why: &'static str,
}

/// The result of the answers so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Another question has to be asked.
    Ask(Question),
    /// The tool is known.
    Use(Advice),
}

/// Follows the answers to the tool, or to the first question that they leave open.
pub(crate) fn advise(answers: &Answers) -> Next {
    let Some(if_two_hold) = answers.if_two_hold else { return Next::Ask(Question::IfTwoHold) };
    let Some(work) = answers.work else { return Next::Ask(Question::Work) };
    match (work, if_two_hold) {
        (Work::ShareOut, _) => {
            found(Tool::Queue, "Handing out jobs is what a queue does; a lock per job would be a slow queue.")
        }
        (_, IfTwoHold::WastedWork) => found(
            Tool::EfficiencyLock,
            "Doing it twice costs work and nothing else, so a lock that is nearly always right is enough.",
        ),
        (Work::Once, IfTwoHold::Damage) => found(
            Tool::IdempotencyKey,
            "It must happen once, however often it is attempted. A lock expires; the record that it was done does not.",
        ),
        (Work::Own, IfTwoHold::Damage) => owner(answers),
        (Work::Change, IfTwoHold::Damage) => change(answers),
    }
}

/// The questions that the answers leave open.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Open {
    /// Asked whatever the other answers are, in the order of asking.
    pub(crate) always: Vec<Question>,
    /// Asked only after certain answers.
    pub(crate) sometimes: Vec<Question>,
}

/// Returns the open questions, by following every possible answer to them.
pub(crate) fn open_questions(answers: &Answers) -> Open {
    let paths = paths(answers);
    let on_every_path = |question: &Question| paths.iter().all(|path| path.contains(question));
    let on_some_path = |question: &Question| paths.iter().any(|path| path.contains(question));
    let (always, rest): (Vec<_>, Vec<_>) = Question::ALL.into_iter().partition(on_every_path);
    Open { always, sometimes: rest.into_iter().filter(on_some_path).collect() }
}

/// Returns each possible sequence of questions from here to a tool.
fn paths(answers: &Answers) -> Vec<Vec<Question>> {
    let Next::Ask(question) = advise(answers) else { return vec![Vec::new()] };
    let after = question.choices().into_iter().flat_map(|choice| {
        let mut assumed = answers.clone();
        assumed.set(question, &choice.word);
        paths(&assumed)
    });
    after.map(|path| [vec![question], path].concat()).collect()
}

fn owner(answers: &Answers) -> Next {
    match answers.can_assign {
        None => Next::Ask(Question::CanAssign),
        Some(YesNo::Yes) => found(
            Tool::OneWriter,
            "When every key already belongs to one process, the only process to exclude is its predecessor.",
        ),
        Some(YesNo::No) => found(
            Tool::FencedLock,
            "The owner has to be elected, and the previous owner may not know that it was replaced.",
        ),
    }
}

fn change(answers: &Answers) -> Next {
    match answers.writes_to {
        None => Next::Ask(Question::WritesTo),
        Some(WritesTo::OneRecord) => record(answers),
        Some(WritesTo::OneDatabase) => database(answers),
        Some(WritesTo::CanCheck) => found(
            Tool::FencedLock,
            "No single database can decide, so the lock decides and every store checks the lock's token.",
        ),
        Some(WritesTo::CannotCheck) => found(
            Tool::FencedLock,
            "No lock is safe for something that cannot check. Put a proxy of yours in front of it, as the only way in, and \
             let the proxy check the token. The last write may still be on its way when a new holder takes over.",
        ),
    }
}

fn record(answers: &Answers) -> Next {
    match answers.conflicts {
        None => Next::Ask(Question::Conflicts),
        Some(Conflicts::Rare) => found(
            Tool::CompareAndSwap,
            "The record's version shows whether another writer came in between, and retrying is cheap.",
        ),
        Some(Conflicts::Often) => database(answers),
    }
}

fn database(answers: &Answers) -> Next {
    match answers.one_transaction {
        None => Next::Ask(Question::OneTransaction),
        Some(YesNo::Yes) => found(
            Tool::DatabaseLock,
            "The database that keeps the data can also keep the lock, and ends both together.",
        ),
        Some(YesNo::No) => found(
            Tool::FencedLock,
            "The work outlives a transaction, so its holder can be overtaken; the store must be able to detect it.",
        ),
    }
}

fn found(tool: Tool, why: &'static str) -> Next {
    Next::Use(Advice { tool, why })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOOLS: [Tool; 7] = [
        Tool::IdempotencyKey,
        Tool::CompareAndSwap,
        Tool::Queue,
        Tool::OneWriter,
        Tool::DatabaseLock,
        Tool::EfficiencyLock,
        Tool::FencedLock,
    ];

    /// Every combination of answers, each question also left open.
    fn all_combinations() -> Vec<Answers> {
        let mut all = vec![Answers::default()];
        for question in Question::ALL {
            let mut grown = all.clone();
            for choice in question.choices() {
                grown.extend(all.iter().cloned().map(|mut answers| {
                    answers.set(question, &choice.word);
                    answers
                }));
            }
            all = grown;
        }
        all
    }

    fn tool_for(answers: &[(Question, &str)]) -> Tool {
        let mut given = Answers::default();
        for (question, word) in answers {
            given.set(*question, word);
        }
        match advise(&given) {
            Next::Use(advice) => advice.tool,
            Next::Ask(question) => panic!("still asks {question:?}"),
        }
    }

    #[test]
    fn every_combination_leads_to_a_tool_or_to_an_open_question() {
        let all = all_combinations();
        assert_eq!(all.len(), 3 * 5 * 3 * 5 * 3 * 3);
        for answers in all {
            match advise(&answers) {
                Next::Ask(question) => {
                    assert_eq!(answers.get(question), None, "asked again with {answers:?}");
                    assert_eq!(open_questions(&answers).always.first(), Some(&question), "{answers:?}");
                }
                Next::Use(advice) => {
                    assert!(!advice.why.is_empty());
                    assert_eq!(open_questions(&answers), Open::default());
                }
            }
        }
    }

    #[test]
    fn every_tool_can_be_reached() {
        for tool in TOOLS {
            let reached = all_combinations()
                .iter()
                .any(|answers| matches!(advise(answers), Next::Use(advice) if advice.tool == tool));
            assert!(reached, "no answers lead to {tool:?}");
        }
    }

    #[test]
    fn answering_everything_is_always_enough() {
        let full = |answers: &Answers| Question::ALL.iter().all(|question| answers.get(*question).is_some());
        for answers in all_combinations().iter().filter(|answers| full(answers)) {
            assert!(matches!(advise(answers), Next::Use(_)), "{answers:?}");
        }
    }

    #[test]
    fn at_most_five_questions_are_asked() {
        assert_eq!(paths(&Answers::default()).iter().map(Vec::len).max(), Some(5));
    }

    #[test]
    fn required_answers_are_distinguished_from_optional_ones() {
        use Question::*;
        let open = open_questions(&Answers::default());
        assert_eq!(open.always, [IfTwoHold, Work]);
        assert_eq!(open.sometimes, [CanAssign, WritesTo, Conflicts, OneTransaction]);
    }

    #[test]
    fn damage_never_leads_to_an_efficiency_lock() {
        for answers in all_combinations().iter().filter(|answers| answers.if_two_hold == Some(IfTwoHold::Damage)) {
            let efficiency = matches!(advise(answers), Next::Use(advice) if advice.tool == Tool::EfficiencyLock);
            assert!(!efficiency, "{answers:?}");
        }
    }

    #[test]
    fn typical_situations_get_the_usual_tool() {
        use Question as Q;
        let damage = (Q::IfTwoHold, "damage");
        let cases: [(&[(Q, &str)], Tool); 8] = [
            (&[(Q::IfTwoHold, "wasted-work"), (Q::Work, "own")], Tool::EfficiencyLock),
            (&[(Q::IfTwoHold, "wasted-work"), (Q::Work, "share-out")], Tool::Queue),
            (&[damage, (Q::Work, "once")], Tool::IdempotencyKey),
            (&[damage, (Q::Work, "own"), (Q::CanAssign, "yes")], Tool::OneWriter),
            (&[damage, (Q::Work, "own"), (Q::CanAssign, "no")], Tool::FencedLock),
            (
                &[damage, (Q::Work, "change"), (Q::WritesTo, "one-record"), (Q::Conflicts, "rare")],
                Tool::CompareAndSwap,
            ),
            (
                &[damage, (Q::Work, "change"), (Q::WritesTo, "one-database"), (Q::OneTransaction, "yes")],
                Tool::DatabaseLock,
            ),
            (&[damage, (Q::Work, "change"), (Q::WritesTo, "can-check")], Tool::FencedLock),
        ];
        for (answers, tool) in cases {
            assert_eq!(tool_for(answers), tool, "{answers:?}");
        }
    }
}
