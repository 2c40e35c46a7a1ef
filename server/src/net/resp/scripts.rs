//! The scripts of lock libraries for Redis. They are recognised by their text, and not interpreted: each stands for one
//! request.
//!
//! A further script is one more entry of [`SCRIPTS`]. Its text may be written with any white space, quotes and letter case in
//! strings, and without comments.

use std::collections::HashMap;
use std::sync::LazyLock;

use super::channels::Announcement;
use super::form::{Form, Missing, Outcomes, Shown, Word};

/// A script that the service knows.
pub(super) struct Script {
    /// The libraries that send it.
    pub(super) of: &'static str,
    text: &'static str,
    pub(super) meaning: Meaning,
}

/// What a script asks for. Its first argument is the value of the lock.
#[derive(Debug, Clone, Copy)]
pub(super) enum Meaning {
    /// Take all locks or none.
    Take { ttl: usize, renews: bool, outcomes: Words },
    /// Release the locks that are held with the value, and announce it on a channel if there is one.
    Release { outcomes: Words, channel: Option<usize> },
    /// Extend the locks if all are held with the value.
    Extend { ttl: usize, outcomes: Words },
    /// Add to the time that is left, or replace it, as the third argument says. A lock without a time is not extended.
    AddTime { outcomes: Words },
    /// Release the lock without comparing its value, and announce that on the channel in the first argument.
    Drop { outcomes: Words },
    /// Read how long the locks stay held.
    TimeLeft { unit: u64, missing: Missing },
}

/// The replies of a script: when it was done, when another client holds a lock, and when a lock is free.
pub(super) type Words = (Word, Word, Word);

impl Meaning {
    pub(super) fn form(outcomes: Words, locks: usize, announcement: Option<Announcement>) -> Form {
        let (done, refused, free) = outcomes;
        let locks = u32::try_from(locks).unwrap_or(u32::MAX);
        Form::Outcome(Outcomes { done, refused, free, locks }, announcement)
    }

    pub(super) fn time_left(unit: u64, missing: Missing, secret: palisade_core::Secret) -> Form {
        Form::Held { secret: Some(secret), shown: Shown::TimeLeft(unit), missing }
    }
}

const ONE_OR_ZERO: Words = (Word::Number(1), Word::Number(0), Word::Number(0));
const ONE_OR_NIL: Words = (Word::Number(1), Word::Nil, Word::Nil);
const OK_OR_NIL: Words = (Word::Ok, Word::Nil, Word::Nil);
const COUNT_OR_ZERO: Words = (Word::Count, Word::Number(0), Word::Number(0));

/// Every script, with the libraries whose source it was found in.
const SCRIPTS: &[Script] = &[
    Script {
        of: "redis-py 6 to 8: release",
        text: "local token = redis.call('get', KEYS[1]) if not token or token ~= ARGV[1] then return 0 end
            redis.call('del', KEYS[1]) return 1",
        meaning: Meaning::Release { outcomes: ONE_OR_ZERO, channel: None },
    },
    Script {
        of: "redis-py 6 to 8: extend",
        text: "local token = redis.call('get', KEYS[1]) if not token or token ~= ARGV[1] then return 0 end
            local expiration = redis.call('pttl', KEYS[1]) if not expiration then expiration = 0 end
            if expiration < 0 then return 0 end local newttl = ARGV[2]
            if ARGV[3] == '0' then newttl = ARGV[2] + expiration end
            redis.call('pexpire', KEYS[1], newttl) return 1",
        meaning: Meaning::AddTime { outcomes: ONE_OR_ZERO },
    },
    Script {
        of: "redis-py 6 to 8: reacquire",
        text: "local token = redis.call('get', KEYS[1]) if not token or token ~= ARGV[1] then return 0 end
            redis.call('pexpire', KEYS[1], ARGV[2]) return 1",
        meaning: Meaning::Extend { ttl: 2, outcomes: ONE_OR_ZERO },
    },
    Script {
        of: "redlock-py, redsync 4.0 to 4.11, bsm/redislock 0.8, rslock, ShedLock: release",
        text: "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end",
        meaning: Meaning::Release { outcomes: ONE_OR_ZERO, channel: None },
    },
    Script {
        of: "redsync 4, bsm/redislock 0.8, ShedLock: extend",
        text: "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('pexpire', KEYS[1], ARGV[2])
            else return 0 end",
        meaning: Meaning::Extend { ttl: 2, outcomes: ONE_OR_ZERO },
    },
    Script {
        of: "node-redlock 4 and 5: acquire",
        text: "for i, key in ipairs(KEYS) do if redis.call('exists', key) == 1 then return 0 end end
            for i, key in ipairs(KEYS) do redis.call('set', key, ARGV[1], 'PX', ARGV[2]) end return #KEYS",
        meaning: Meaning::Take { ttl: 2, renews: false, outcomes: COUNT_OR_ZERO },
    },
    Script {
        of: "node-redlock 4 and 5: extend",
        text: "for i, key in ipairs(KEYS) do if redis.call('get', key) ~= ARGV[1] then return 0 end end
            for i, key in ipairs(KEYS) do redis.call('set', key, ARGV[1], 'PX', ARGV[2]) end return #KEYS",
        meaning: Meaning::Extend { ttl: 2, outcomes: COUNT_OR_ZERO },
    },
    Script {
        of: "node-redlock 4 and 5: release",
        text: "local count = 0 for i, key in ipairs(KEYS) do
            if redis.call('get', key) == ARGV[1] then redis.pcall('del', key) count = count + 1 end end return count",
        meaning: Meaning::Release { outcomes: (Word::Count, Word::Count, Word::Count), channel: None },
    },
    Script {
        of: "aioredlock 0.7: lock and extend",
        text: "local identifier = redis.call('get', KEYS[1]) if not identifier or identifier == ARGV[1] then
            return redis.call('set', KEYS[1], ARGV[1], 'PX', ARGV[2]) else return redis.error_reply('ERROR') end",
        meaning: Meaning::Take { ttl: 2, renews: true, outcomes: (Word::Ok, Word::Failed, Word::Failed) },
    },
    Script {
        of: "aioredlock 0.7: unlock",
        text: "local identifier = redis.call('get', KEYS[1]) if not identifier then return redis.status_reply('OK')
            elseif identifier == ARGV[1] then return redis.call('del', KEYS[1]) else
            return redis.error_reply('ERROR') end",
        meaning: Meaning::Release { outcomes: (Word::Number(1), Word::Failed, Word::Ok), channel: None },
    },
    Script {
        of: "aioredlock 0.7: time left",
        text: "local identifier = redis.call('get', KEYS[1]) if not identifier then return redis.error_reply('ERROR')
            elseif identifier == ARGV[1] then return redis.call('TTL', KEYS[1]) else
            return redis.error_reply('ERROR') end",
        meaning: Meaning::TimeLeft { unit: 1000, missing: Missing { refused: Word::Failed, free: Word::Failed } },
    },
    Script {
        of: "redsync 4.12 and later: release",
        text: "local val = redis.call('GET', KEYS[1]) if val == ARGV[1] then return redis.call('DEL', KEYS[1])
            elseif val == false then return -1 else return 0 end",
        meaning: Meaning::Release { outcomes: (Word::Number(1), Word::Number(0), Word::Number(-1)), channel: None },
    },
    Script {
        of: "redsync 4: extend or take again",
        text: "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('PEXPIRE', KEYS[1], ARGV[2])
            elseif redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2], 'NX') then return 1 else return 0 end",
        meaning: Meaning::Take { ttl: 2, renews: true, outcomes: ONE_OR_ZERO },
    },
    Script {
        of: "bsm/redislock 0.9 and later: obtain",
        text: "local function pexpire(ttl) for _, key in ipairs(KEYS) do redis.call('pexpire', key, ttl) end end
            local function canOverrideKeys() local offset = tonumber(ARGV[2]) for _, key in ipairs(KEYS) do
            if redis.call('getrange', key, 0, offset-1) ~= string.sub(ARGV[1], 1, offset) then return false end end
            return true end
            local setArgs = {} for _, key in ipairs(KEYS) do table.insert(setArgs, key)
            table.insert(setArgs, ARGV[1]) end
            if redis.call('msetnx', unpack(setArgs)) ~= 1 then if canOverrideKeys() == false then return false end
            redis.call('mset', unpack(setArgs)) end
            pexpire(ARGV[3]) return redis.status_reply('OK')",
        meaning: Meaning::Take { ttl: 3, renews: true, outcomes: OK_OR_NIL },
    },
    Script {
        of: "bsm/redislock 0.9 and later: refresh",
        text: "local values = redis.call('mget', unpack(KEYS)) for i, _ in ipairs(KEYS) do
            if values[i] ~= ARGV[1] then return false end end
            for _, key in ipairs(KEYS) do redis.call('pexpire', key, ARGV[2]) end return redis.status_reply('OK')",
        meaning: Meaning::Extend { ttl: 2, outcomes: OK_OR_NIL },
    },
    Script {
        of: "bsm/redislock 0.9 and later: release",
        text: "local values = redis.call('mget', unpack(KEYS)) for i, _ in ipairs(KEYS) do
            if values[i] ~= ARGV[1] then return false end end
            redis.call('del', unpack(KEYS)) return redis.status_reply('OK')",
        meaning: Meaning::Release { outcomes: OK_OR_NIL, channel: None },
    },
    Script {
        of: "bsm/redislock 0.9 and later: time left",
        text: "local values = redis.call('mget', unpack(KEYS)) for i, _ in ipairs(KEYS) do
            if values[i] ~= ARGV[1] then return false end end
            local minTTL = 0 for _, key in ipairs(KEYS) do local ttl = redis.call('pttl', key)
            if ttl > 0 and (minTTL == 0 or ttl < minTTL) then minTTL = ttl end end return minTTL",
        meaning: Meaning::TimeLeft { unit: 1, missing: Missing { refused: Word::Nil, free: Word::Nil } },
    },
    Script {
        of: "bsm/redislock 0.8: time left",
        text: "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('pttl', KEYS[1]) else return -3 end",
        meaning: Meaning::TimeLeft {
            unit: 1,
            missing: Missing { refused: Word::Number(-3), free: Word::Number(-3) },
        },
    },
    Script {
        of: "rslock 0.6: extend",
        text: "if redis.call('get', KEYS[1]) ~= ARGV[1] then return 0 else
            if redis.call('set', KEYS[1], ARGV[1], 'PX', ARGV[2]) ~= nil then return 1 else return 0 end end",
        meaning: Meaning::Extend { ttl: 2, outcomes: ONE_OR_ZERO },
    },
    Script {
        of: "Spring Integration 5 to 7: obtain",
        text: "local lockClientId = redis.call('GET', KEYS[1]) if lockClientId == ARGV[1] then
            redis.call('PEXPIRE', KEYS[1], ARGV[2]) return true elseif not lockClientId then
            redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2]) return true end return false",
        meaning: Meaning::Take { ttl: 2, renews: true, outcomes: ONE_OR_NIL },
    },
    Script {
        of: "Spring Integration 6.4 and later: renew",
        text:
            "if (redis.call('GET', KEYS[1]) == ARGV[1]) then redis.call('PEXPIRE', KEYS[1], ARGV[2]) return true end
            return false",
        meaning: Meaning::Extend { ttl: 2, outcomes: ONE_OR_NIL },
    },
    Script {
        of: "Spring Integration 6 and later, spin lock: release with UNLINK",
        text: "local lockClientId = redis.call('GET', KEYS[1]) if lockClientId == ARGV[1] then
            redis.call('UNLINK', KEYS[1]) return true end return false",
        meaning: Meaning::Release { outcomes: ONE_OR_NIL, channel: None },
    },
    Script {
        of: "Spring Integration 6, spin lock: release with DEL",
        text: "local lockClientId = redis.call('GET', KEYS[1]) if lockClientId == ARGV[1] then
            redis.call('DEL', KEYS[1]) return true end return false",
        meaning: Meaning::Release { outcomes: ONE_OR_NIL, channel: None },
    },
    Script {
        of: "Spring Integration 6 and later, pub/sub lock: release with UNLINK",
        text: "local lockClientId = redis.call('GET', KEYS[1])
            if (lockClientId == ARGV[1] and redis.call('UNLINK', KEYS[1]) == 1) then
            redis.call('PUBLISH', ARGV[2], KEYS[1]) return true end return false",
        meaning: Meaning::Release { outcomes: ONE_OR_NIL, channel: Some(2) },
    },
    Script {
        of: "Spring Integration 6, pub/sub lock: release with DEL",
        text: "local lockClientId = redis.call('GET', KEYS[1])
            if (lockClientId == ARGV[1] and redis.call('DEL', KEYS[1]) == 1) then
            redis.call('PUBLISH', ARGV[2], KEYS[1]) return true end return false",
        meaning: Meaning::Release { outcomes: ONE_OR_NIL, channel: Some(2) },
    },
    Script {
        of: "Spring Integration 5.5, pub/sub lock: release with UNLINK",
        text: "if (redis.call('unlink', KEYS[1]) == 1) then redis.call('publish', ARGV[1], KEYS[1]) return true end
            return false",
        meaning: Meaning::Drop { outcomes: ONE_OR_NIL },
    },
    Script {
        of: "Spring Integration 5.5, pub/sub lock: release with DEL",
        text: "if (redis.call('del', KEYS[1]) == 1) then redis.call('publish', ARGV[1], KEYS[1]) return true end
            return false",
        meaning: Meaning::Drop { outcomes: ONE_OR_NIL },
    },
];

static BY_TEXT: LazyLock<HashMap<String, &'static Script>> =
    LazyLock::new(|| SCRIPTS.iter().map(|script| (normalised(script.text.as_bytes()), script)).collect());

/// The longest text that is looked at. No known script is longer.
const LONGEST: usize = 4096;
/// How many digests are remembered. White space makes different digests of one script.
const REMEMBERED: usize = 1024;

/// Returns the script with this text.
pub(super) fn find(text: &[u8]) -> Option<&'static Script> {
    // No known script has a comment of several lines.
    if text.len() > LONGEST || text.windows(3).any(|part| part == b"--[") {
        return None;
    }
    BY_TEXT.get(&normalised(text)).copied()
}

/// The scripts that clients have sent, by the SHA-1 of their text.
#[derive(Default)]
pub(in crate::net) struct SentScripts {
    by_digest: HashMap<String, Sent>,
    /// How often scripts were added or found.
    uses: u64,
}

struct Sent {
    script: &'static Script,
    last_use: u64,
}

impl SentScripts {
    /// Remembers a script, and returns its digest. Forgets the one that was not used for the longest time if there are too many:
    /// clients send a script again that is not found.
    pub(super) fn add(&mut self, text: &[u8], script: &'static Script) -> String {
        // Clients name a script by this digest; nothing is protected by it.
        let digest = ring::digest::digest(&ring::digest::SHA1_FOR_LEGACY_USE_ONLY, text);
        let digest: String = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        if self.by_digest.len() >= REMEMBERED && !self.by_digest.contains_key(&digest) {
            let oldest =
                self.by_digest.iter().min_by_key(|(_, sent)| sent.last_use).map(|(digest, _)| digest.clone());
            oldest.and_then(|oldest| self.by_digest.remove(&oldest));
        }
        self.uses += 1;
        self.by_digest.insert(digest.clone(), Sent { script, last_use: self.uses });
        digest
    }

    /// Returns the script with this digest.
    pub(super) fn get(&mut self, digest: &[u8]) -> Option<&'static Script> {
        let digest = std::str::from_utf8(digest).ok()?.to_ascii_lowercase();
        self.uses += 1;
        let sent = self.by_digest.get_mut(&digest)?;
        sent.last_use = self.uses;
        Some(sent.script)
    }
}

/// Returns the tokens of a Lua text, separated by spaces: without comments, and strings in lower case with one kind of quote.
fn normalised(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    let mut tokens = String::with_capacity(text.len());
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        if let Some(comment) = rest.strip_prefix("--") {
            rest = comment.split_once('\n').map_or("", |(_, after)| after).trim_start();
            continue;
        }
        let length = match first {
            '"' | '\'' => rest[1..].find(first).map_or(rest.len(), |end| end + 2),
            c if is_word(c) => rest.find(|c: char| !is_word(c)).unwrap_or(rest.len()),
            c => c.len_utf8(),
        };
        let (token, after) = rest.split_at(length);
        if matches!(first, '"' | '\'') {
            let content = token.trim_matches(first);
            tokens.push('\'');
            tokens.push_str(&content.to_ascii_lowercase());
            tokens.push('\'');
        } else {
            tokens.push_str(token);
        }
        tokens.push(' ');
        rest = after.trim_start();
    }
    tokens
}
