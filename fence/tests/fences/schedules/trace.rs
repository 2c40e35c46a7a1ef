//! Renders a schedule as text.

use super::world::{Message, Phase, Scheme, Step, Transit, Updates, World};

/// Renders one line per step, and the violation at the end.
pub(crate) fn render(scheme: Scheme, path: &[(World, Step, World)]) -> String {
    let mut lines: Vec<String> =
        path.iter().map(|(before, step, after)| line(scheme, before, *step, after)).collect();
    if let Some((_, _, last)) = path.last() {
        lines.extend(
            owners(last.lost()).map(|owner| format!("LOST: {owner} update was acknowledged, and it is gone")),
        );
        lines.extend(owners(last.twice).map(|owner| format!("TWICE: {owner} update was applied two times")));
    }
    lines.join("\n")
}

fn line(scheme: Scheme, before: &World, step: Step, after: &World) -> String {
    match step {
        Step::Grant(0) => "A has the lock, with token 1".to_owned(),
        Step::Grant(at) => {
            let (old, new, token) = (letter(at - 1), letter(at), at + 1);
            match before.clients[at - 1].phase {
                Phase::Over => format!("{old} releases it; {new} has the lock, with token {token}"),
                _ => format!("{old} is paused, its lock expires; {new} has the lock, with token {token}"),
            }
        }
        Step::Seal(at) => format!("{} seals the resource with token {}{}", letter(at), at + 1, refusal(after, at)),
        Step::SealAgain(at) => format!("{}'s seal arrives again", letter(at)),
        Step::Read(at) => format!("{} reads {}{}", letter(at), before.number.count_ones(), refusal(after, at)),
        Step::Send(at) => match before.clients[at].phase {
            Phase::HasRead(read) => format!("{} sends: write {}", letter(at), read.count_ones() + 1),
            _ => format!("{} sends", letter(at)),
        },
        Step::Check(message) => match after.messages.iter().any(|other| checked(message, other)) {
            true => format!("{} arrives: the lock service says that its token is the newest", what(message)),
            false => format!("{} arrives: the lock service says that its token is old; refused", what(message)),
        },
        Step::Deliver(message) => delivery(scheme, before, message, after),
        Step::GiveUp(at) => format!("{} hears nothing and gives up waiting", letter(at)),
        Step::Resend(at) => format!("{} sends the same again", letter(at)),
        Step::Settle(at) => format!("{} settles what became of it", letter(at)),
        Step::StartOver(at) => format!("{} turns to its next update, under the same number", letter(at)),
        Step::Transact(at) => format!("{} adds one, in one transaction{}", letter(at), refusal(after, at)),
    }
}

fn delivery(scheme: Scheme, before: &World, message: Message, after: &World) -> String {
    let client = letter(message.client);
    let arrives = match (scheme, message.transit) {
        (Scheme::AskService, _) => format!("{} is applied", what(message)),
        (_, Transit::Delivered) => format!("{} arrives again", what(message)),
        _ => format!("{} arrives", what(message)),
    };
    let (was, is) = (before.clients[message.client], after.clients[message.client]);
    let reply = match (was.phase == is.phase, is.done > was.done) {
        (_, true) => format!(", and {client} is told that it is done"),
        (true, _) => String::new(),
        (false, _) => format!(", and {client} is told that it is refused"),
    };
    format!("{arrives}: the number is {}{reply}", after.number.count_ones())
}

fn what(message: Message) -> String {
    format!("{}'s write of {}", letter(message.client), message.body.count_ones())
}

fn checked(message: Message, other: &Message) -> bool {
    *other == Message { transit: Transit::Checked, ..message }
}

fn refusal(after: &World, at: usize) -> &'static str {
    match after.clients[at].phase {
        Phase::Over if after.clients[at].done == 0 => ": refused",
        _ => "",
    }
}

fn letter(client: usize) -> char {
    char::from(b'A' + client as u8)
}

/// Returns the owners of these updates: `A's`, or `A's second`.
fn owners(updates: Updates) -> impl Iterator<Item = String> {
    (0..8).filter(move |bit| updates & (1 << bit) != 0).map(|bit| {
        let which = if bit % 2 == 1 { " second" } else { "" };
        format!("{}'s{which}", letter(bit / 2))
    })
}
