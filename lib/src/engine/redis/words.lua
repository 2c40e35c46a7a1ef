-- What the rules are said in.
--
-- Fields of the hash, each a MessagePack array:
--   r        the namespace itself            s<session>            a session, behind what the usual case reads of it
--   l<lock>  a lock that is held or wanted   c<session>:<number>   a claim: one request, waiting, held or withheld
--   e<x><lock> a grant of it that ended *    a<session>:<number>   what became of a request that is no claim any more
--   t<token> the claim of a grant that has its locks not alone
--   token    the last token, as digits; with a `w` in front while somebody watches, as nothing is usual then
-- * The last ones, in turn at the letters a to p.
-- A lock's field may be a line instead, `!` and token, session, request, since: one exclusive grant that nobody else wants.
-- The sorted set beside it has the moments at which sessions (s…) and delays (c…) are over, and locks (l…) at which a call has
-- left work to the next one.
--
-- RUNS has the last run ids of the server, each with the last token that was there when it was first seen: a server that was
-- started again, or another one in its place. BEGAN is when that was. A server may have lost keep-alives that it had answered,
-- so from then on every session has its whole TTL.

local INCARNATION, SESSION, ARRIVAL, WATCHED, PASSES, CURSOR, BEGAN, RUNS = 1, 2, 3, 4, 5, 6, 7, 8
local TTL, ENDS, LABEL, CHANNEL, HEAD, TAIL, LOCKS, LOW, TOP, HOW = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10
local OWNER, NUMBER, STATE, RANK, SINCE, DELAY, VALUE, PREV, NEXT, PLACES = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10
-- A list at a lock is three numbers: its head, its tail, its length.
local LIMIT, TAKEN, HOLDERS, QUEUE, PAST = 1, 2, 3, 6, 9
local WAITS, HELD, WITHHELD = 0, 1, 2

local ALL, LAST_TOKEN = 4294967295, 9007199254740991
local HISTORY, SWEEP = 16, 64

-- How much stands in front of a session: incarnation, when it ends, and its first request that is certainly new.
local FRONT = 16 + 13 + 16

-- Of the call that is carried out. `last` is the last token, `found` how it was written, `first` what is due first. Records
-- are in `cache` by kind and name, `named` has their fields, and `dirty` those that are to be written, or removed where false.
local hash, due, first, now, root, incarnation, last, found, watched, cache, named, dirty, clock, outbox, events, work

-- The rules, and what can be asked.
local rule, ask = {}, {}
-- A function has 60 locals of others at most; these are its fields. A call blocks all of Redis, so it ends and grants no more
-- claims than WORK. What is left is due at once, and the next calls go on with it. With ALWAYS, which tests set, lines are
-- looked through in every call that may do so.
rule.WORK, rule.RUNS_KEPT, rule.LOCKS_PER_SESSION, rule.WAITERS_PER_LOCK = 500, 16, 100000, 100000
rule.ABOUT = 'Locks of Palisade. Without this key every lock is lost, and clients refuse to go on: see docs/engines/redis.md'
local ENDED = { 'ended' }
