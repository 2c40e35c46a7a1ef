-- The constants, and the state of a call.
--
-- Fields of the hash, each a MessagePack array:
--   r        the root of the namespace       s<session>            a session, behind a header for the fast path
--   l<lock>  a lock with holders or waiters  c<session>:<number>   a claim: one acquire that waits, holds or is withheld
--   e<x><lock> a grant of it that ended *    a<session>:<number>   the outcome of a request without a claim
--   t<token> the claim of a grant that shares its locks
--   token    the last token, as digits; with a `w` in front while there is a watch, which prevents the fast path
-- * The last 16, under the letters a to p in rotation.
-- A lock's field may be an inline grant instead: `!`, token, session, request number, and the time of the grant in seconds and
-- microseconds. It is one exclusive grant of one lock without waiters, and has no claim.
-- The sorted set has the times at which sessions (s…) and lock-delays (c…) end, and the locks (l…) where a call has left work
-- to the next one.
--
-- A claim is withheld while its lock-delay lasts: its session has expired, and no other client gets its locks yet.
--
-- RUNS has the last run ids of the server, each with the last token at the time when it was first seen. A new run id means a
-- restarted server, or another one in its place. RUN_SINCE is the time when the last run id was first seen. The server may have
-- lost keep-alives that it had answered, so from then on every session has its whole TTL.

-- The root. PASSES is how many scans for inline grants of ended sessions are still to be made, CURSOR where the current one is.
local INCARNATION, SESSION, ARRIVAL, WATCHED, PASSES, CURSOR, RUN_SINCE, RUNS = 1, 2, 3, 4, 5, 6, 7, 8
-- A session. HEAD and TAIL are its first and last claim, LOCKS is the number of its locks. Outcomes are kept for the request
-- numbers from LOWEST to HIGHEST. HOW is how it ended, while some of its claims are still to be ended.
local TTL, ENDS, LABEL, CHANNEL, HEAD, TAIL, LOCKS, LOWEST, HIGHEST, HOW = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10
-- A claim. RANK is its position in queues while it waits, and its token afterwards. PREV and NEXT link the claims of a session.
-- ENTRIES has four values for each lock: its name, the permits needed, the previous and the next claim in the lock's list.
local OWNER, NUMBER, STATE, RANK, SINCE, DELAY, VALUE, PREV, NEXT, ENTRIES = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10
-- A lock. HOLDERS and QUEUE are lists of claims, each three values: head, tail, length. PAST is how many grants have ended.
local LIMIT, TAKEN, HOLDERS, QUEUE, PAST = 1, 2, 3, 6, 9
local WAITS, HELD, WITHHELD = 0, 1, 2

-- ALL permits belong to an exclusive holder. LAST_TOKEN is the largest integer that Lua's numbers have exactly.
local ALL, LAST_TOKEN = 4294967295, 9007199254740991
-- How many ended grants a lock keeps, and how many expired sessions and lock-delays one call ends.
local HISTORY, SWEEP = 16, 64

-- The length of a session's header: incarnation, the time at which it ends, and its first new request number.
local HEADER_LENGTH = 16 + 13 + 16

-- The state of a call. `last` is the last token, `stored_token` its stored form, `first` the first entry of the sorted set.
-- `cache` has the records by kind and name, `fields` the field of each record, and `dirty` the records to write, or to remove
-- where false. `due_changes` has the changes of the sorted set, `outbox` the messages to clients, `events` those to watchers.
local hash, due, first, now, root, incarnation, last, stored_token, watched
local cache, fields, dirty, due_changes, outbox, events, work_left

-- The functions of the lock rules, and those that answer the requests of clients.
local rule, requests = {}, {}
-- These are fields because a Lua function can use at most 60 outer locals. A call blocks Redis, so it ends and grants at most
-- WORK claims. The next calls continue with the rest. With ALWAYS, which tests set, every call that may collect inline grants
-- does so.
rule.WORK, rule.RUNS_KEPT, rule.LOCKS_PER_SESSION, rule.WAITERS_PER_LOCK = 500, 16, 100000, 100000
rule.ABOUT = 'Locks of Palisade. Without this key every lock is lost, and clients refuse to go on: see docs/engines/redis.md'
local ENDED = { 'ended' }
