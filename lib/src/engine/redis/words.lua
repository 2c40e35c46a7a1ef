-- What the rules are said in.
--
-- Fields of the hash, each a MessagePack array:
--   r        the namespace itself            s<session>            a session, behind what the usual case reads of it
--   l<lock>  a lock that is held or wanted   c<session>:<number>   a claim: one request, waiting, held or withheld
--   e<x><lock> a grant of it that ended *    a<session>:<number>   what became of a request that is no claim any more
--   t<token> the claim of a grant that has its locks not alone
--   token    the last token, as digits; with a `w` in front while somebody watches, as nothing is usual then
-- * The last ones, in turn at the letters a to p. Older versions kept all of them in h<lock>.
-- A lock's field may be a line instead, `!` and token, session, request, since: one exclusive grant that nobody else wants.
-- The sorted set beside it has the moments at which sessions (s…) and delays (c…) are over.

local INCARNATION, SESSION, ARRIVAL, WATCHED, PASSES, CURSOR = 1, 2, 3, 4, 5, 6
local TTL, ENDS, LABEL, CHANNEL, HEAD, TAIL, LOCKS, LOW, TOP = 1, 2, 3, 4, 5, 6, 7, 8, 9
local OWNER, NUMBER, STATE, RANK, SINCE, DELAY, VALUE, PREV, NEXT, PLACES = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10
-- A list at a lock is three numbers: its head, its tail, its length.
local LIMIT, TAKEN, HOLDERS, QUEUE, PAST = 1, 2, 3, 6, 9
local WAITS, HELD, WITHHELD = 0, 1, 2

local ALL, LAST_TOKEN = 4294967295, 9007199254740991
local LOCKS_PER_SESSION, WAITERS_PER_LOCK, HISTORY, SWEEP = 100000, 100000, 16, 64
local ABOUT = 'Locks of Palisade. Without this key every lock is lost, and clients refuse to go on: see docs/engines/redis.md'

-- How much stands in front of a session: incarnation, when it ends, and its first request that is certainly new.
local FRONT = 16 + 13 + 16

-- Of the call that is carried out. `last` is the last token, `found` how it was written, `first` what is due first. Records
-- are in `cache` by kind and name, `named` has their fields, and `dirty` those that are to be written, or removed where false.
local hash, due, first, now, root, incarnation, last, found, watched, cache, named, dirty, clock, outbox, events

-- The rules, and what can be asked.
local rule, ask = {}, {}
local ENDED = { 'ended' }
