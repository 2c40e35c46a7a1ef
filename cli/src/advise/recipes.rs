//! What to do with each tool: a few steps, an example to copy, and what it does not do for you.

use super::tree::Tool;

/// How to use one tool.
#[derive(Debug)]
pub(super) struct Recipe {
    /// The tool's name in JSON. Never changes.
    pub(super) id: &'static str,
    /// The tool's name in a sentence.
    pub(super) name: &'static str,
    pub(super) steps: &'static [&'static str],
    pub(super) example: &'static str,
    pub(super) beware: &'static [&'static str],
}

impl Recipe {
    /// The recipe for a tool.
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
        "Name the deed, not the attempt: the order's number, not a fresh random id per try.",
        "If the far end takes a key, send this one with every try. It does the deed for the first and repeats its \
         answer for the rest. Done.",
        "If it takes none, claim the key in your own database before you act. Whoever inserts the row acts; \
         everybody else reads the outcome. The claim never expires.",
        "Store the outcome beside the claim.",
    ],
    example: "\
INSERT INTO deed (key) VALUES ('charge:order-4711') ON CONFLICT DO NOTHING;
-- 1 row: yours, act now. 0 rows: somebody has it, read the outcome.
UPDATE deed SET outcome = $1 WHERE key = 'charge:order-4711';",
    beware: &[
        "A claim without an outcome means that nobody knows whether it happened: its owner stopped midway. Ask the far \
         end or a person; acting again would be a guess.",
    ],
};

static COMPARE_AND_SWAP: Recipe = Recipe {
    id: "compare-and-swap",
    name: "compare-and-swap on the record's version",
    steps: &[
        "Give the record a version that every write raises.",
        "Read the record together with its version.",
        "Write on the condition that the version is still the one you read.",
        "If it is not, throw the result away, read again and start over.",
    ],
    example: "\
SELECT balance, version FROM account WHERE id = $1;
UPDATE account SET balance = $2, version = version + 1
 WHERE id = $1 AND version = $3;        -- 0 rows: somebody was faster, read again
-- An object store does the same with If-Match and the ETag that was read.",
    beware: &[
        "When the reply to a write is lost, it may have been applied. Read before you try again, or the same change is \
         made twice.",
        "It guards this one record. Whatever else you did in between is done.",
    ],
};

static QUEUE: Recipe = Recipe {
    id: "queue",
    name: "a queue",
    steps: &[
        "Write each job down once, in a broker or in a table.",
        "Let a worker take a job so that no other worker sees it meanwhile.",
        "Mark the job as done in the same transaction as its result, where both are in one database.",
        "Make a second run of the same job harmless, by an idempotency key for instance.",
    ],
    example: "\
BEGIN;
SELECT id, payload FROM job WHERE done_at IS NULL
 ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED;
-- do the job, write its result
UPDATE job SET done_at = now() WHERE id = $1;
COMMIT;",
    beware: &[
        "Queues deliver at least once. A worker that was slow for longer than the queue's patience does the job a \
         second time, at the same time as somebody else.",
    ],
};

static ONE_WRITER: Recipe = Recipe {
    id: "one-writer",
    name: "one writer per key",
    steps: &[
        "Cut the keys into partitions, and let the broker (or your plan) give each partition to one process.",
        "Send every change of a key through its partition. Nobody else writes.",
        "Number the assignments of a partition: a new owner gets a higher epoch.",
        "A new owner first raises the partition's epoch where the results are kept, and only then reads.",
        "Store the result and the position in the partition in one transaction, on the condition that the epoch is \
         still yours.",
    ],
    example: "\
-- when the partition is assigned to you, before the first read:
UPDATE partition SET epoch = $2 WHERE id = $1 AND epoch < $2;
-- with every result, in its transaction:
UPDATE partition SET position = $3 WHERE id = $1 AND epoch = $2;   -- 0 rows: roll back, stop",
    beware: &[
        "A reassignment is a takeover. The owner before may be paused and not know, which is what the epoch is for: it \
         is a fencing token by another name.",
    ],
};

static DATABASE_LOCK: Recipe = Recipe {
    id: "database-lock",
    name: "the database's own lock",
    steps: &[
        "Say it as a constraint if you can (UNIQUE, EXCLUDE, CHECK): a rule needs no lock.",
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
};

static EFFICIENCY_LOCK: Recipe = Recipe {
    id: "efficiency-lock",
    name: "an efficiency lock",
    steps: &[
        "Take a lock that ends by itself, in a store that you already run. Redis is enough.",
        "Choose its time to live longer than the work usually takes.",
        "Put a random value of your own in it, and release only while that value is still there: check and delete in \
         one step.",
        "If you do not get it, skip the work. Somebody is at it.",
    ],
    example: "\
SET nightly-report 6f1c0a2e NX PX 600000        # OK: do it. (nil): skip it.
# release, as one script:
EVAL \"if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) else return 0 end\" \\
     1 nightly-report 6f1c0a2e",
    beware: &[
        "Two processes will hold it at once some day: after a pause, a failover, a slow network. You said that this \
         only wastes work. On the day that it could do damage, ask again.",
    ],
};

static FENCED_LOCK: Recipe = Recipe {
    id: "fenced-lock",
    name: "a fenced lock",
    steps: &[
        "Take the lock from something that numbers its grants, ever upwards: on one host Palisade's library with \
         `embedded:` (`guard.token()`); on several etcd (the create revision of your own key), ZooKeeper (the czxid of \
         your own node), or a row in PostgreSQL whose counter is raised in the transaction that grants. This number is \
         your token.",
        "Seal before the first read: raise the mark at the resource to your token. If the mark is already higher, \
         somebody has overtaken you: stop.",
        "Read only now, and only while the mark is still yours.",
        "Number your writes 1, 2, 3, and send token and number with each. The resource checks both and writes in one \
         atomic step.",
        "When a write is refused, stop. Throw away what you computed and start over with a new grant.",
    ],
    example: "\
-- seal. 0 rows: look at the mark; your own token is a repeat, a higher one means stop
UPDATE account SET fence_token = $1, fence_seq = 0 WHERE id = $2 AND fence_token < $1;
-- read. 0 rows: overtaken
SELECT balance FROM account WHERE id = $2 AND fence_token = $1;
-- write number $4. 0 rows: look at the mark; token and number yours is a repeat, else stop
UPDATE account SET balance = $3, fence_seq = $4
 WHERE id = $2 AND fence_token = $1 AND fence_seq = $4 - 1;",
    beware: &[
        "The usual short form, UPDATE ... SET fence_token = $1 WHERE ... AND fence_token <= $1 with no seal, is weaker. \
         You hold 34 and have read; the late write of 33 arrives before your first one and is accepted; yours then \
         overwrites it with what you computed from the older read. Tokens only went up, and an update was lost. Use it \
         only where a seal is impossible.",
        "Every way to the data has to check. One script that writes past the fence undoes it.",
        "Fencing is not atomicity. A holder cut off midway leaves half its work for the next one.",
        "Palisade's engines for several hosts, and its fences, are being built. Until they are here, that part is done \
         by hand.",
    ],
};
