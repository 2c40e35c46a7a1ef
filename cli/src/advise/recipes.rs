//! A recipe for each tool: a few steps, an example to copy, and the tool's limits.

use super::tree::Tool;

/// How to use one tool.
#[derive(Debug)]
pub(super) struct Recipe {
    /// The tool's name in JSON. Programs rely on it, so it never changes.
    pub(super) id: &'static str,
    /// The tool's name in a sentence.
    pub(super) name: &'static str,
    pub(super) steps: &'static [&'static str],
    pub(super) example: &'static str,
    pub(super) beware: &'static [&'static str],
    /// The page that has more about it.
    pub(super) page: &'static str,
}

impl Recipe {
    /// Returns the recipe for a tool.
    pub(super) fn of(tool: Tool) -> &'static Self {
        match tool {
            Tool::IdempotencyKey => &IDEMPOTENCY_KEY,
            Tool::CompareAndSwap => &COMPARE_AND_SWAP,
            Tool::Queue => &QUEUE,
            Tool::OneWriter => &ONE_WRITER,
            Tool::DatabaseLock => &DATABASE_LOCK,
            Tool::EfficiencyLock => &EFFICIENCY_LOCK,
            Tool::FencedLock => &FENCED_LOCK,
        }
    }
}

static IDEMPOTENCY_KEY: Recipe = Recipe {
    id: "idempotency-key",
    name: "an idempotency key",
    steps: &[
        "Make the key from the operation, not from the attempt: the order's number, not a new random id per attempt.",
        "If the other side accepts an idempotency key, send this one with every attempt. It performs the first attempt \
         and repeats that answer for the others. Done.",
        "If it accepts none, keep the outcome under the key: `palisade once`, or .once() and a tower layer in Rust, with the \
         record in SQLite, PostgreSQL, MySQL or Redis. The first attempt acts, and all others get its outcome.",
        "If the work changes only the database that has the record, commit both in one transaction. That needs no lock, and happens \
         exactly once.",
    ],
    example: "\
palisade once charge/4711 -- ./charge.sh 4711        # a repeat prints the kept output and runs nothing
palisade once --store postgres://db/shop --keep 7d charge/4711 -- ./charge.sh 4711",
    beware: &[
        "An attempt that began and did not finish may have acted. The next one learns of it (PALISADE_ONCE_PREVIOUS): ask \
         the other side or a person before acting again.",
    ],
    page: "docs/recipes/once.md",
};

static COMPARE_AND_SWAP: Recipe = Recipe {
    id: "compare-and-swap",
    name: "compare-and-swap on the record's version",
    steps: &[
        "Give the record a version that every write raises.",
        "Read the record together with its version.",
        "Write on the condition that the version is still the one you read.",
        "If it is not, throw the result away, read again and start over. `Versioned` in Rust does all of this, with backoff, for \
         PostgreSQL, SQLite, Redis and object stores.",
    ],
    example: "\
SELECT balance, version FROM account WHERE id = $1;
UPDATE account SET balance = $2, version = version + 1
 WHERE id = $1 AND version = $3;        -- 0 rows: another writer was faster, read again
-- An object store does the same with If-Match and the ETag that was read.",
    beware: &[
        "When the reply to a write is lost, it may have been applied. Read before you try again, or the same change is \
         made twice.",
        "It protects this one record. Other effects of the work in between are not undone.",
    ],
    page: "docs/recipes/compare-and-set.md",
};

static QUEUE: Recipe = Recipe {
    id: "queue",
    name: "a queue",
    steps: &[
        "Write each job down once, in a broker or in a table. `palisade queue` does it in PostgreSQL or SQLite, and does the jobs \
         of a key one at a time and in order.",
        "Let a worker take a job so that no other worker sees it meanwhile.",
        "Mark the job as done in the same transaction as its result, where both are in one database.",
        "Make a second run of the same job harmless, by an idempotency key for instance.",
    ],
    example: "\
palisade queue push orders --key customer-7 charge-4711
palisade queue work orders -- ./do-job.sh            # gets the job on stdin, and its token",
    beware: &[
        "Queues deliver at least once. When a worker is slower than the queue's time-out, another worker gets \
         the same job, and both do it at the same time.",
    ],
    page: "docs/recipes/queue.md",
};

static ONE_WRITER: Recipe = Recipe {
    id: "one-writer",
    name: "one writer per key",
    steps: &[
        "Cut the keys into partitions, and let each have one owner: your broker does that, or `palisade partitions`, which shares \
         them among the processes that run and gives each ownership a token.",
        "Send every change of a key through its partition. No other process writes.",
        "Number the assignments of a partition: a new owner gets a higher epoch.",
        "A new owner first raises the partition's epoch where the results are kept, and only then reads.",
        "Store the result and the position in the partition in one transaction, on the condition that the epoch is \
         still yours.",
    ],
    example: "\
palisade partitions orders 64 -- ./worker            # gets PALISADE_PARTITIONS and a token of each
-- when the partition is assigned to you, before the first read (its token is the epoch):
UPDATE partition SET epoch = $2 WHERE id = $1 AND epoch < $2;
-- with every result, in its transaction:
UPDATE partition SET position = $3 WHERE id = $1 AND epoch = $2;   -- 0 rows: roll back, stop",
    beware: &[
        "A reassignment is a takeover. The owner before may be paused and not know, which is what the epoch is for: it \
         is a fencing token by another name.",
    ],
    page: "docs/recipes/partitions.md",
};

static DATABASE_LOCK: Recipe = Recipe {
    id: "database-lock",
    name: "the database's own lock",
    steps: &[
        "Use a constraint if you can (UNIQUE, EXCLUDE, CHECK): a constraint needs no lock.",
        "Otherwise lock the rows as you read them, change them, commit.",
        "Lock rows in one fixed order everywhere, so that two transactions cannot wait for each other.",
    ],
    example: "\
BEGIN;
SELECT balance FROM account WHERE id IN ($1, $2) ORDER BY id FOR UPDATE;
UPDATE account SET balance = $3 WHERE id = $1;
UPDATE account SET balance = $4 WHERE id = $2;
COMMIT;",
    beware: &[
        "The lock lives as long as the transaction. Keep it short, and call nothing outside while it is open.",
        "A holder that is cut off loses the lock and its changes together. That is why this needs no token, and why it \
         protects nothing outside this database.",
    ],
    page: "docs/recipes/README.md",
};

static EFFICIENCY_LOCK: Recipe = Recipe {
    id: "efficiency-lock",
    name: "an efficiency lock",
    steps: &[
        "Run the work under a lock of Palisade, and declare that two holders would only waste work: --efficiency, or \
         .efficiency() in Rust. Any engine will do: embedded: on one host, and on several whatever you already run, such \
         as redis://, postgres:// or mysql://.",
        "If you do not get it, skip the work (--no-wait). Another process does it. A job on a schedule that every host starts needs \
         --every instead: otherwise the second host runs it when the first has finished.",
        "If the work makes a value that many processes want, let one rebuild it while the others use the old one: recipe::cache in \
         Rust, docs/recipes/cache.md.",
    ],
    example: "\
palisade run --no-wait --efficiency nightly-report -- ./report.sh        # on this host
palisade --url redis://cache:6379 run --no-wait --efficiency nightly-report -- ./report.sh
palisade run --every 10m --efficiency report -- ./report.sh              # once an hour over all hosts",
    beware: &[
        "Two processes will hold it at once some day: after a pause, a failover, a slow network. You said that this \
         only wastes work. On the day that it could do damage, ask again.",
    ],
    page: "docs/commands/run.md",
};

static FENCED_LOCK: Recipe = Recipe {
    id: "fenced-lock",
    name: "a fenced lock",
    steps: &[
        "Take the lock from an engine of Palisade that is fenced: embedded: on one host; on several `palisade serve`, or \
         the PostgreSQL, MySQL or MariaDB that you already run. Each grant has a token, a number that only rises. \
         `palisade doctor URL` says what an engine promises.",
        "Put the fence where the data is: `palisade fence postgres`, `mysql` or `redis` print or install it, `palisade \
         fence http` is a proxy in front of a service that you cannot change, and palisade-fence has SQLite, files, folders and \
         objects for Rust.",
        "Seal before the first read: it raises the mark at the resource to your token. If the mark is already higher, \
         a newer holder has overtaken you: stop.",
        "Read and write under your token. Where writes may arrive twice, number them 1, 2, 3.",
        "When a write is refused, stop. Discard your result and start over with a new grant. `palisade fence \
         check` says why it was refused.",
    ],
    example: "\
palisade fence postgres --install postgres://db/shop --protect account=account
palisade --url postgres://db/shop run account -- sh -c 'psql postgres://db/shop -v ON_ERROR_STOP=1 -v t=$PALISADE_TOKEN -f pay.sql'
-- pay.sql
SELECT palisade_fence.seal('account', :t);
BEGIN; SELECT set_config('palisade_fence.token', :'t', true);
UPDATE account SET balance = balance - 5 WHERE id = 42; COMMIT;",
    beware: &[
        "The usual check of the highest token, without a seal, is weaker. You hold 34 and have read; the late \
         write of 33 arrives before your first one and is accepted; yours then overwrites it with a result of \
         the older read. Tokens only went up, and an update was lost.",
        "Every path to the data has to check. One script that writes past the fence undoes it.",
        "Fencing is not atomicity. A holder cut off midway leaves half its work for the next one.",
    ],
    page: "docs/fencing.md",
};

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::Args;

    /// The fence reads this setting, and psql goes on after an error without ON_ERROR_STOP.
    #[test]
    fn the_example_sets_the_token_for_the_fence_and_stops_at_a_refusal() {
        assert!(FENCED_LOCK.example.contains("set_config('palisade_fence.token', :'t', true)"));
        assert!(FENCED_LOCK.example.contains("-v ON_ERROR_STOP=1"));
    }

    #[test]
    fn every_page_exists() {
        for recipe in
            [&IDEMPOTENCY_KEY, &COMPARE_AND_SWAP, &QUEUE, &ONE_WRITER, &DATABASE_LOCK, &EFFICIENCY_LOCK, &FENCED_LOCK]
        {
            let page = concat!(env!("CARGO_MANIFEST_DIR"), "/..").to_owned() + "/" + recipe.page;
            assert!(std::path::Path::new(&page).exists(), "{}", recipe.page);
        }
    }

    #[test]
    fn every_recommended_command_exists() {
        let mut commands = 0;
        for recipe in [&IDEMPOTENCY_KEY, &QUEUE, &ONE_WRITER, &EFFICIENCY_LOCK, &FENCED_LOCK] {
            for line in recipe.example.lines().filter(|line| line.starts_with("palisade ")) {
                let command = line.split(" #").next().unwrap_or(line);
                let parsed = Args::try_parse_from(command.split_whitespace());
                assert!(
                    parsed.is_ok(),
                    "{command}: {}",
                    parsed.err().map(|error| error.to_string()).unwrap_or_default()
                );
                commands += 1;
            }
            let text = format!("{recipe:?}");
            assert!(!text.contains("being built") && !text.contains("by hand"), "{text}");
        }
        assert_eq!(commands, 10);
    }
}
