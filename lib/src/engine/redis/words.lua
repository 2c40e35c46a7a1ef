-- The constants and the state of the rules.
--
-- Fields of the hash, each a MessagePack array:
--   r        the root of the namespace       s<session>            a session, behind a header for the fast path
--   l<lock>  a lock with holders or waiters  c<session>:<number>   a claim: one request, waiting, held or withheld
--   e<x><lock> a grant of it that ended *    a<session>:<number>   the outcome of a request without a claim
--   t<token> the claim of a grant that shares its locks
--   token    the last token, as digits; with a `w` in front while there is a watch, which prevents the fast path
-- * The last 16, under the letters a to p in rotation.
-- A lock's field may be a line instead, `!` and token, session, request, since: one exclusive grant without waiters.
-- The sorted set has the times at which sessions (s…) and delays (c…) end, and the locks (l…) where a call has left work to
-- the next one.
--
-- RUNS has the last run ids of the server, each with the last token at the time when it was first seen. A new run id means a
-- restarted server, or another one in its place. BEGAN is the time of the last change. A server may have lost keep-alives that
-- it had answered, so from then on every session has its whole TTL.

local INCARNATION, SESSION, ARRIVAL, WATCHED, PASSES, CURSOR, BEGAN, RUNS = 1, 2, 3, 4, 5, 6, 7, 8
local TTL, ENDS, LABEL, CHANNEL, HEAD, TAIL, LOCKS, LOW, TOP, HOW = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10
local OWNER, NUMBER, STATE, RANK, SINCE, DELAY, VALUE, PREV, NEXT, PLACES = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10
-- A list of a lock is three fields: head, tail, length.
local LIMIT, TAKEN, HOLDERS, QUEUE, PAST = 1, 2, 3, 6, 9
local WAITS, HELD, WITHHELD = 0, 1, 2

local ALL, LAST_TOKEN = 4294967295, 9007199254740991
local HISTORY, SWEEP = 16, 64

-- The length of a session's header: incarnation, the time at which it ends, and its first new request number.
local FRONT = 16 + 13 + 16

-- The state of a call. `last` is the last token, `found` its stored form, `first` the first entry of the sorted set. `cache`
-- has the records by kind and name, `named` their fields, and `dirty` those to write, or to remove where false.
local hash, due, first, now, root, incarnation, last, found, watched, cache, named, dirty, clock, outbox, events, work

-- The rules, and the requests.
local rule, ask = {}, {}
-- These are fields because a function can use at most 60 outer locals. A call blocks Redis, so it ends and grants at most
-- WORK claims. The rest is due at once, and the next calls continue with it. With ALWAYS, which tests set, every call that may
-- collect lines does so.
rule.WORK, rule.RUNS_KEPT, rule.LOCKS_PER_SESSION, rule.WAITERS_PER_LOCK = 500, 16, 100000, 100000
rule.ABOUT = 'Locks of Palisade. Without this key every lock is lost, and clients refuse to go on: see docs/engines/redis.md'
local ENDED = { 'ended' }
