-- The rules of locks, over records in one hash. Records are read when they are needed and written together at the end,
-- so that a call which fails has changed nothing.
--
-- Fields of the hash, each a MessagePack array:
--   r        the namespace itself            s<session>            a session
--   l<lock>  a lock that is held or wanted   c<session>:<number>   a claim: one request, waiting, held or withheld
--   h<lock>  its last grants that ended      a<session>:<number>   what became of a request that is no claim any more
--   t<token> the claim of a grant that has its locks not alone
--   n<session>  below which number its client does not ask again, as plain digits, if the session itself does not say more
-- A lock's field may be a line instead, `!` and token, session, request, since: one exclusive grant that nobody else wants.
-- The sorted set beside it has the moments at which sessions (s…) and delays (c…) are over.

local INCARNATION, TOKEN, SESSION, ARRIVAL, WATCHED, PASSES, CURSOR = 1, 2, 3, 4, 5, 6, 7
local TTL, ENDS, LABEL, CHANNEL, HEAD, TAIL, LOCKS, LOW, TOP = 1, 2, 3, 4, 5, 6, 7, 8, 9
local OWNER, NUMBER, STATE, RANK, SINCE, DELAY, VALUE, PREV, NEXT, PLACES = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10
-- A list at a lock is three numbers: its head, its tail, its length.
local LIMIT, TAKEN, HOLDERS, QUEUE = 1, 2, 3, 6
local WAITS, HELD, WITHHELD = 0, 1, 2

local ALL, LAST_TOKEN = 4294967295, 9007199254740991
local LOCKS_PER_SESSION, WAITERS_PER_LOCK, HISTORY, SWEEP = 100000, 100000, 16, 64
local ABOUT = 'Locks of Palisade. Without this key every lock is lost, and clients refuse to go on: see docs/engines/redis.md'

-- Of the call that is carried out.
local hash, due, now, root, watched, cache, dirty, clock, outbox, events

local function text(number)
  return string.format('%d', number)
end

local inflate

local function take_in(field, packed)
  if packed and packed:byte() == 33 then
    inflate(field, packed)
  else
    cache[field] = packed and cmsgpack.unpack(packed)
  end
end

local function get(field)
  if cache[field] == nil then
    take_in(field, redis.call('HGET', hash, field))
  end
  return cache[field]
end

local function put(field, record)
  cache[field], dirty[field] = record, true
end

local function preload(fields)
  local packed = redis.call('HMGET', hash, unpack(fields))
  for i = 1, #fields do
    take_in(fields[i], packed[i])
  end
end

local function in_parts(command, key, all)
  for from = 1, #all, 1000 do
    redis.call(command, key, unpack(all, from, math.min(from + 999, #all)))
  end
end

local function write()
  local set, gone = {}, {}
  for field in pairs(dirty) do
    local record = cache[field]
    if record then
      set[#set + 1] = field
      set[#set + 1] = cmsgpack.pack(record)
    else
      gone[#gone + 1] = field
    end
  end
  in_parts('HSET', hash, set)
  in_parts('HDEL', hash, gone)
  local add, over = {}, {}
  for member, at in pairs(clock) do
    if at then
      add[#add + 1] = at
      add[#add + 1] = member
    else
      over[#over + 1] = member
    end
  end
  in_parts('ZADD', due, add)
  in_parts('ZREM', due, over)
  for i = 1, #outbox, 2 do
    redis.call('PUBLISH', hash .. ':' .. outbox[i], outbox[i + 1])
  end
  if #events > 0 then
    redis.call('PUBLISH', hash .. ':events', cjson.encode(events))
  end
end

local function tell(channel, message)
  outbox[#outbox + 1] = channel
  outbox[#outbox + 1] = message
end

-- Only if somebody watches: nobody else pays for it.
local function happened(event)
  events[#events + 1] = event
end

local function names(claim)
  local found, places = {}, claim[PLACES]
  for p = 1, #places, 4 do
    found[#found + 1] = places[p]
  end
  return found
end

local function next_token()
  if root[TOKEN] >= LAST_TOKEN then
    return nil
  end
  root[TOKEN] = root[TOKEN] + 1
  dirty.r = true
  return root[TOKEN]
end

-- Lists at a lock: its holders, and its queue.

local function place_at(claim, name)
  local places = claim[PLACES]
  for p = 1, #places, 4 do
    if places[p] == name then
      return p
    end
  end
end

local function link(lock, list, id, claim, p)
  local places, last = claim[PLACES], lock[list + 1]
  local name = places[p]
  places[p + 2], places[p + 3] = last, false
  if last then
    local other = get('c' .. last)
    other[PLACES][place_at(other, name) + 3] = id
    dirty['c' .. last] = true
  else
    lock[list] = id
  end
  lock[list + 1], lock[list + 2] = id, lock[list + 2] + 1
  dirty['l' .. name] = true
end

local function unlink(lock, list, claim, p)
  local places = claim[PLACES]
  local name, before, after = places[p], places[p + 2], places[p + 3]
  if before then
    local other = get('c' .. before)
    other[PLACES][place_at(other, name) + 3] = after
    dirty['c' .. before] = true
  else
    lock[list] = after
  end
  if after then
    local other = get('c' .. after)
    other[PLACES][place_at(other, name) + 2] = before
    dirty['c' .. after] = true
  else
    lock[list + 1] = before
  end
  lock[list + 2] = lock[list + 2] - 1
  dirty['l' .. name] = true
end

local function is_free(lock, need)
  return not lock or (lock[QUEUE + 2] == 0 and lock[LIMIT] - lock[TAKEN] >= need)
end

local function is_shared(claim)
  local places = claim[PLACES]
  for p = 2, #places, 4 do
    if places[p] ~= ALL then
      return true
    end
  end
  return false
end

-- A claim's way: made, granted, ended.

local function join_session(id, claim)
  local session, last = get('s' .. claim[OWNER]), nil
  last = session[TAIL]
  claim[PREV], claim[NEXT] = last, false
  if last then
    get('c' .. last)[NEXT] = id
    dirty['c' .. last] = true
  else
    session[HEAD] = id
  end
  session[TAIL], session[LOCKS] = id, session[LOCKS] + #claim[PLACES] / 4
  dirty['s' .. claim[OWNER]] = true
end

-- Makes a claim of a line. If its session is over, so is the grant.
inflate = function(field, line)
  local token, owner, number, since = unpack(cmsgpack.unpack(line:sub(2)))
  if not get('s' .. owner) then
    return put(field, false)
  end
  local id = owner .. ':' .. text(number)
  local places = { field:sub(2), ALL, false, false }
  local claim = { owner, number, HELD, token, since, false, false, false, false, places }
  put('c' .. id, claim)
  join_session(id, claim)
  put(field, { ALL, ALL, id, id, 1, false, false, 0 })
end

local function leave_session(claim)
  local session, before, after = get('s' .. claim[OWNER]), claim[PREV], claim[NEXT]
  if before then
    get('c' .. before)[NEXT] = after
    dirty['c' .. before] = true
  else
    session[HEAD] = after
  end
  if after then
    get('c' .. after)[PREV] = before
    dirty['c' .. after] = true
  else
    session[TAIL] = before
  end
  session[LOCKS] = session[LOCKS] - #claim[PLACES] / 4
  dirty['s' .. claim[OWNER]] = true
end

-- Keeps what became of a request, unless its session has said that it will not ask again.
local function remember(claim, what)
  local number = claim[NUMBER]
  local session = number and get('s' .. claim[OWNER])
  if session and number >= session[LOW] then
    session[TOP] = math.max(session[TOP], number)
    dirty['s' .. claim[OWNER]] = true
    put('a' .. claim[OWNER] .. ':' .. text(number), what)
  end
end

local function hex(value)
  return (value:gsub('.', function(byte)
    return string.format('%02x', byte:byte())
  end))
end

local function announce(claim, ticket)
  local number = claim[NUMBER] and text(claim[NUMBER]) or false
  happened({ 'granted', names(claim), claim[OWNER], text(claim[RANK]), ticket or false, number })
  if claim[VALUE] then
    happened({ 'published', claim[PLACES][1], text(claim[RANK]), hex(claim[VALUE]) })
  end
end

local function hold(id, claim, token)
  claim[STATE], claim[RANK], claim[SINCE] = HELD, token, now
  local places = claim[PLACES]
  for p = 1, #places, 4 do
    local lock = get('l' .. places[p])
    link(lock, HOLDERS, id, claim, p)
    lock[TAKEN] = lock[TAKEN] + places[p + 1]
  end
  if is_shared(claim) then
    put('t' .. text(token), id)
  end
  dirty['c' .. id] = true
end

local function grant_waiting(id, claim, token, touched)
  local ticket, places = text(claim[RANK]), claim[PLACES]
  for p = 1, #places, 4 do
    unlink(get('l' .. places[p]), QUEUE, claim, p)
    touched[#touched + 1] = places[p]
  end
  hold(id, claim, token)
  if watched then
    announce(claim, ticket)
  end
  local session = get('s' .. claim[OWNER])
  tell(session[CHANNEL], 'g ' .. claim[OWNER] .. ' ' .. text(claim[NUMBER] or 0) .. ' ' .. text(token))
end

local function leave_queue(id, claim, why, touched)
  local places = claim[PLACES]
  leave_session(claim)
  for p = 1, #places, 4 do
    unlink(get('l' .. places[p]), QUEUE, claim, p)
    touched[#touched + 1] = places[p]
  end
  put('c' .. id, false)
  if watched then
    happened({ 'left', names(claim), claim[OWNER], text(claim[RANK]), why })
  end
end

local function record(claim, how, stays)
  local places, label = claim[PLACES], get('s' .. claim[OWNER])[LABEL]
  for p = 1, #places, 4 do
    local lock = get('l' .. places[p])
    if stays or lock[HOLDERS + 2] > 1 or lock[QUEUE + 2] > 0 then
      local history = get('h' .. places[p]) or {}
      while #history >= HISTORY do
        table.remove(history, 1)
      end
      history[#history + 1] = cmsgpack.pack({ text(claim[RANK]), claim[OWNER], label, how })
      put('h' .. places[p], history)
    end
  end
end

-- Frees what a held or withheld claim took, and removes it.
local function give_back(id, claim, touched)
  local places = claim[PLACES]
  for p = 1, #places, 4 do
    local lock = get('l' .. places[p])
    unlink(lock, HOLDERS, claim, p)
    lock[TAKEN] = lock[TAKEN] - places[p + 1]
    touched[#touched + 1] = places[p]
  end
  if is_shared(claim) then
    put('t' .. text(claim[RANK]), false)
  end
  put('c' .. id, false)
end

-- `how` is one word, or a table for a force-release.
local function end_grant(id, claim, how, touched)
  record(claim, how, false)
  leave_session(claim)
  give_back(id, claim, touched)
  if watched then
    happened({ 'ended', names(claim), claim[OWNER], text(claim[RANK]), how })
  end
end

local function withhold(id, claim)
  record(claim, 'expired', true)
  leave_session(claim)
  if watched then
    happened({ 'ended', names(claim), claim[OWNER], text(claim[RANK]), 'expired' })
  end
  claim[STATE], claim[NUMBER], claim[VALUE], claim[SINCE] = WITHHELD, false, false, now + claim[DELAY]
  dirty['c' .. id] = true
  clock['c' .. id] = claim[SINCE]
  if watched then
    happened({ 'withheld', names(claim), text(claim[RANK]), claim[DELAY] })
  end
end

local function end_withheld(id, claim, force, touched)
  clock['c' .. id] = false
  give_back(id, claim, touched)
  if watched then
    happened({ 'over', names(claim), text(claim[RANK]), force or false })
  end
end

-- Ends everything of a session; others are granted what became free by `settle`.
local function end_session(number, session, how, touched)
  while session[HEAD] do
    local id = session[HEAD]
    local claim = get('c' .. id)
    if claim[STATE] == WAITS then
      leave_queue(id, claim, how, touched)
    elseif how == 'expired' and claim[DELAY] then
      withhold(id, claim)
    else
      end_grant(id, claim, how, touched)
    end
  end
  for answered = session[LOW], session[TOP] do
    put('a' .. number .. ':' .. text(answered), false)
  end
  put('s' .. number, false)
  put('n' .. number, false)
  clock['s' .. number] = false
  if how == 'expired' then
    -- Lines of its grants may be left. Twice around, wherever it stands now, is once from the beginning.
    root[PASSES] = 2
    dirty.r = true
  end
  tell(session[CHANNEL], 'e ' .. number .. ' ' .. how)
end

local function is_its_turn(id, claim)
  local places = claim[PLACES]
  for p = 1, #places, 4 do
    local lock = get('l' .. places[p])
    if lock[QUEUE] ~= id or lock[LIMIT] - lock[TAKEN] < places[p + 1] then
      return false
    end
  end
  return true
end

-- Grants whatever can be granted now at these locks, and drops those that nobody holds or wants. A waiter whose
-- session is over is never granted.
local function settle(touched)
  local i = 1
  while touched[i] do
    local lock = get('l' .. touched[i])
    while lock and lock[QUEUE] do
      local id = lock[QUEUE]
      local claim = get('c' .. id)
      local session = get('s' .. claim[OWNER])
      if session[ENDS] <= now then
        end_session(claim[OWNER], session, 'expired', touched)
      elseif not is_its_turn(id, claim) then
        break
      else
        local token = next_token()
        if not token then
          break
        end
        grant_waiting(id, claim, token, touched)
      end
    end
    i = i + 1
  end
  for _, name in ipairs(touched) do
    local lock = get('l' .. name)
    if lock and lock[HOLDERS + 2] == 0 and lock[QUEUE + 2] == 0 then
      put('l' .. name, false)
      if get('h' .. name) then
        put('h' .. name, false)
      end
    end
  end
end

-- Time.

-- Ends what is overdue, so much at most. Returns when the next thing is due.
local function sweep(most)
  local touched = {}
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', due, '-inf', now, 'LIMIT', 0, most)) do
    local what, id = get(member), member:sub(2)
    if member:sub(1, 1) == 's' then
      if not what then
        clock[member] = false
      elseif what[ENDS] > now then
        clock[member] = what[ENDS]
      else
        end_session(id, what, 'expired', touched)
      end
    elseif not what or what[STATE] ~= WITHHELD then
      clock[member] = false
    else
      end_withheld(id, what, nil, touched)
    end
  end
  settle(touched)
end

-- Ends the first holder of a lock if its time is over, should the clock beside the hash have been lost. If this
-- server's time was set back, a session has no more than its TTL from now.
local function look_at_holder(name)
  local lock = get('l' .. name)
  local claim = lock and lock[HOLDERS] and get('c' .. lock[HOLDERS])
  if not claim then
    return
  end
  local touched = {}
  if claim[STATE] == WITHHELD then
    if claim[SINCE] <= now or claim[SINCE] > now + claim[DELAY] then
      end_withheld(lock[HOLDERS], claim, nil, touched)
    end
  else
    local session = get('s' .. claim[OWNER])
    if session[ENDS] <= now then
      end_session(claim[OWNER], session, 'expired', touched)
    elseif session[ENDS] > now + session[TTL] then
      session[ENDS] = now + session[TTL]
      dirty['s' .. claim[OWNER]] = true
      clock['s' .. claim[OWNER]] = session[ENDS]
    end
  end
  settle(touched)
end

local function next_due()
  local first = redis.call('ZRANGE', due, 0, 0, 'WITHSCORES')
  return first[2] and math.max(0, tonumber(first[2]) - now) or -1
end

-- Looks through some fields for lines whose sessions are over.
local function collect()
  if root[PASSES] == 0 then
    return
  end
  local page = redis.call('HSCAN', hash, root[CURSOR], 'MATCH', 'l*', 'COUNT', 100)
  for i = 1, #page[2], 2 do
    local line = page[2][i + 1]
    if line:byte() == 33 and not get('s' .. cmsgpack.unpack(line:sub(2))[2]) then
      put(page[2][i], false)
    end
  end
  root[CURSOR] = page[1]
  if page[1] == '0' then
    root[PASSES] = root[PASSES] - 1
  end
  dirty.r = true
end

-- Who asks.

-- Its client will not ask again about requests below this number.
local function forget_below(number, session, low)
  if low <= session[LOW] then
    return
  end
  for answered = session[LOW], math.min(low - 1, session[TOP]) do
    put('a' .. number .. ':' .. text(answered), false)
  end
  session[LOW] = low
  dirty['s' .. number] = true
end

-- The session, unless its time is over.
local function living(number)
  local session = get('s' .. number)
  if session and session[ENDS] <= now then
    local touched = {}
    end_session(number, session, 'expired', touched)
    settle(touched)
    return nil
  end
  local low = session and redis.call('HGET', hash, 'n' .. number)
  if low then
    forget_below(number, session, tonumber(low))
  end
  return session
end

local function refused(...)
  return { 'refused', ... }
end

local ENDED = { 'ended' }

-- The claim that takes this lock with this token; a refusal if there is none.
local function with_token(name, token)
  if token > root[TOKEN] then
    return nil, refused('NeverGranted', token, root[TOKEN])
  end
  local lock = get('l' .. name)
  local id = lock and lock[HOLDERS]
  local claim = id and get('c' .. id)
  if claim and claim[RANK] ~= token then
    id = get('t' .. text(token))
    claim = id and get('c' .. id)
    if claim and not place_at(claim, name) then
      claim = nil
    end
  end
  if not claim then
    return nil, refused('NotHeld', name, token)
  end
  return id, claim
end

local function held_by(number, name, token)
  local id, claim = with_token(name, token)
  if not id then
    return nil, claim
  elseif claim[STATE] ~= HELD then
    return nil, refused('NotHeld', name, token)
  elseif number and claim[OWNER] ~= number then
    return nil, refused('OtherSession', name, token)
  end
  return id, claim
end

local function new_root(seed)
  local time = redis.call('TIME')
  -- What begins anew, for whatever reason, begins above what there was before, if this server's time goes forward.
  root = { redis.sha1hex(seed .. time[1] .. time[2]):sub(1, 16), time[1] * 1000000 + time[2], now, 0, 0, 0, '0' }
  put('r', root)
  put('about', ABOUT)
end

-- What can be asked.

local ask = {}

-- After every (re)connection: whether the sessions live, and which grants they hold of those that their client knows.
-- args: for each session its number, how many grants, and for each of those a lock and a token.
function ask.hello(args)
  local sessions, i = {}, 5
  while args[i] do
    local session, held = living(args[i]), {}
    local last = i + 1 + 2 * tonumber(args[i + 1])
    for grant = i + 2, last, 2 do
      local token = tonumber(args[grant + 1])
      if session and held_by(args[i], args[grant], token) then
        held[#held + 1] = token
      end
    end
    sessions[#sessions + 1] = session and held or false
    i = last + 1
  end
  return { 'hello', root and root[INCARNATION] or '', root and root[TOKEN] or 0, sessions }
end

function ask.open(args)
  if not root then
    new_root(args[4])
  end
  sweep(8)
  collect()
  root[SESSION] = root[SESSION] + 1
  dirty.r = true
  local number, ttl = text(root[SESSION]), tonumber(args[5])
  put('s' .. number, { ttl, now + ttl, args[6], args[4], false, false, 0, 1, 0 })
  clock['s' .. number] = now + ttl
  return { 'opened', root[SESSION], root[INCARNATION], root[TOKEN] }
end

-- args: session, and locks of which claims are to be made, for whoever comes next does not know their names.
function ask.alive(args)
  if root then
    sweep(8)
    collect()
  end
  local session = living(args[5])
  if not session then
    return ENDED
  end
  for i = 6, #args do
    get('l' .. args[i])
  end
  session[ENDS] = now + session[TTL]
  dirty['s' .. args[5]] = true
  clock['s' .. args[5]] = session[ENDS]
  return { 'done', root[TOKEN] }
end

-- args: session, and the locks that it holds, as far as its client knows.
function ask.close(args)
  local session = living(args[5])
  if not session then
    return ENDED
  end
  for i = 6, #args do
    get('l' .. args[i])
  end
  local touched = {}
  end_session(args[5], session, 'closed', touched)
  settle(touched)
  return { 'done' }
end

-- What became of a request that was asked before; nil if it was not.
local function asked_before(args, session)
  local number, id = tonumber(args[6]), args[5] .. ':' .. args[6]
  local claim = get('c' .. id)
  if claim then
    local places = claim[PLACES]
    local same = #places / 4 == (#args - 10) / 3
    for p = 1, #places, 4 do
      local i = 11 + (p - 1) / 4 * 3
      same = same and places[p] == args[i] and places[p + 1] == tonumber(args[i + 1])
    end
    if not same then
      return refused('NumberReused', number)
    end
    return claim[STATE] == WAITS and { 'queued', claim[RANK], next_due() } or { 'granted', claim[RANK] }
  end
  local answer = number <= session[TOP] and get('a' .. id)
  if answer then
    return answer
  end
  if number < session[LOW] then
    return refused('NumberForgotten', number)
  end
end

-- What is wrong with a request given the locks as they are.
local function wrong(args)
  for i = 11, #args, 3 do
    local name, limit = args[i], tonumber(args[i + 2])
    local lock = get('l' .. name)
    if lock and lock[LIMIT] ~= limit then
      if lock[LIMIT] == ALL or limit == ALL then
        return refused('WrongKind', name, lock[LIMIT], limit)
      end
      return refused('LimitDiffers', name, lock[LIMIT], limit)
    end
    local id = args[8] == 'refuse' and lock and lock[HOLDERS]
    while id do
      local claim = get('c' .. id)
      if claim[OWNER] == args[5] and claim[STATE] == HELD then
        return refused('AlreadyHeld', name, claim[RANK])
      end
      id = claim[PLACES][place_at(claim, name) + 3]
    end
  end
end

local function all_free(args)
  for i = 11, #args, 3 do
    if not is_free(get('l' .. args[i]), tonumber(args[i + 1])) then
      return false
    end
  end
  return true
end

local function no_room(args, session, free)
  local wanted = session[LOCKS] + (#args - 10) / 3
  if wanted > LOCKS_PER_SESSION then
    return refused('LocksPerSession', LOCKS_PER_SESSION, wanted)
  end
  for i = 11, free and 0 or #args, 3 do
    local lock = get('l' .. args[i])
    if lock and lock[QUEUE + 2] >= WAITERS_PER_LOCK then
      return refused('WaitersPerLock', WAITERS_PER_LOCK, lock[QUEUE + 2] + 1)
    end
  end
end

local function claim_of(args)
  local places = {}
  for i = 11, #args, 3 do
    local name, need = args[i], tonumber(args[i + 1])
    places[#places + 1] = name
    places[#places + 1] = need
    places[#places + 1] = false
    places[#places + 1] = false
    if not get('l' .. name) then
      put('l' .. name, { tonumber(args[i + 2]), 0, false, false, 0, false, false, 0 })
    end
  end
  local delay = args[9] ~= '' and tonumber(args[9])
  local value = args[10] ~= '' and args[10]:sub(2)
  return { args[5], tonumber(args[6]), WAITS, 0, now, delay, value, false, false, places }
end

local function acquire(args, session, patience)
  local number, free = args[5], all_free(args)
  if not free then
    sweep(SWEEP)
    for i = 11, #args, 3 do
      look_at_holder(args[i])
    end
    free = all_free(args)
  end
  local bad = wrong(args)
  if bad then
    return bad
  elseif not free and patience == 'try' then
    return { 'busy' }
  end
  bad = no_room(args, session, free)
  if bad then
    return bad
  end
  local token
  if free then
    token = next_token()
    if not token then
      return refused('TokensExhausted')
    end
  end
  local id, claim = number .. ':' .. args[6], claim_of(args)
  cache['c' .. id] = claim
  dirty['c' .. id] = true
  join_session(id, claim)
  if token then
    hold(id, claim, token)
    if watched then
      announce(claim)
    end
    return { 'granted', token }
  end
  root[ARRIVAL] = root[ARRIVAL] + 1
  dirty.r = true
  claim[RANK] = root[ARRIVAL]
  for p = 1, #claim[PLACES], 4 do
    link(get('l' .. claim[PLACES][p]), QUEUE, id, claim, p)
  end
  if watched then
    happened({ 'queued', names(claim), number, text(claim[RANK]) })
  end
  return { 'queued', claim[RANK], next_due() }
end

-- args: session, request, patience.low, reentry, delay, value, then for each lock name, need, limit.
function ask.acquire(args)
  local session = living(args[5])
  if not session then
    return ENDED
  end
  local patience, low = args[7]:match('^(%a+)%.(%d+)$')
  forget_below(args[5], session, tonumber(low))
  local answer = asked_before(args, session)
  if not answer then
    answer = acquire(args, session, patience)
    if answer[1] == 'busy' or answer[1] == 'refused' then
      remember({ args[5], tonumber(args[6]) }, answer)
    end
  end
  return answer
end

-- args: session, request, and the lock that it was for, if it was for one only.
function ask.cancel(args)
  local number, request = args[5], tonumber(args[6])
  local session = living(number)
  if not session then
    return ENDED
  end
  if args[7] then
    get('l' .. args[7])
  end
  local id = number .. ':' .. args[6]
  local claim = get('c' .. id)
  if claim and claim[STATE] ~= WAITS then
    return { 'granted', claim[RANK] }
  elseif claim then
    local touched = {}
    leave_queue(id, claim, 'cancelled', touched)
    remember(claim, refused('Withdrawn', request))
    settle(touched)
  elseif request >= session[LOW] and not (request <= session[TOP] and get('a' .. id)) then
    -- It has not arrived yet; when it does, it is refused.
    remember({ number, request }, refused('Withdrawn', request))
  end
  return { 'gone' }
end

-- args: session, low, lock, token, and `once` if the request of this grant was sent once only: it cannot come again.
function ask.release(args)
  local number = args[5]
  local session = living(number)
  if not session then
    return ENDED
  end
  forget_below(number, session, tonumber(args[6]))
  local id, claim = held_by(number, args[7], tonumber(args[8]))
  if not id then
    return claim
  end
  local touched = {}
  if args[9] ~= 'once' then
    remember(claim, { 'granted', claim[RANK] })
  end
  end_grant(id, claim, 'released', touched)
  settle(touched)
  return { 'done' }
end

function ask.publish(args)
  if not living(args[5]) then
    return ENDED
  end
  local id, claim = held_by(args[5], args[6], tonumber(args[7]))
  if not id then
    return claim
  elseif #claim[PLACES] ~= 4 or claim[PLACES][2] ~= ALL then
    return refused('ValueNotPossible')
  end
  claim[VALUE] = args[8]
  dirty['c' .. id] = true
  if watched then
    happened({ 'published', args[6], text(claim[RANK]), hex(args[8]) })
  end
  return { 'done' }
end

-- args: lock, token or '', who, why.
function ask.force(args)
  if not root then
    return refused('NobodyHolds', args[5])
  end
  sweep(SWEEP)
  local name, found = args[5], {}
  if args[6] ~= '' then
    local id, claim = with_token(name, tonumber(args[6]))
    if not id then
      return claim
    end
    found[1] = id
  else
    local lock = get('l' .. name)
    local id = lock and lock[HOLDERS]
    while id do
      found[#found + 1] = id
      local claim = get('c' .. id)
      id = claim[PLACES][place_at(claim, name) + 3]
    end
    if #found == 0 then
      return refused('NobodyHolds', name)
    end
  end
  local moved = next_token()
  if not moved then
    return refused('TokensExhausted')
  end
  local force, touched = { args[7], args[8], text(moved) }, {}
  for _, id in ipairs(found) do
    local claim = get('c' .. id)
    if claim[STATE] == HELD then
      local session = get('s' .. claim[OWNER])
      remember(claim, { 'granted', claim[RANK] })
      end_grant(id, claim, force, touched)
      tell(session[CHANNEL], 'f ' .. claim[OWNER] .. ' ' .. text(claim[RANK]) .. ' ' .. text(moved) .. ' '
        .. #args[7] .. ' ' .. args[7] .. args[8])
    else
      end_withheld(id, claim, force, touched)
    end
  end
  settle(touched)
  return { 'forced', #found, moved }
end

-- args: lock, limit.
function ask.resize(args)
  local name, limit = args[5], tonumber(args[6])
  local lock = root and get('l' .. name)
  if not lock then
    return refused('NoSuchLock', name)
  elseif lock[LIMIT] == ALL then
    return refused('WrongKind', name, ALL, limit)
  end
  lock[LIMIT] = limit
  dirty['l' .. name] = true
  if watched then
    happened({ 'resized', name, limit })
  end
  local touched, id = { name }, lock[QUEUE]
  while id do
    local claim = get('c' .. id)
    local p = place_at(claim, name)
    local after = claim[PLACES][p + 3]
    if claim[PLACES][p + 1] > limit then
      local bad = refused('ResizedBelow', name, limit)
      local session = get('s' .. claim[OWNER])
      leave_queue(id, claim, bad, touched)
      remember(claim, bad)
      tell(session[CHANNEL], 'z ' .. claim[OWNER] .. ' ' .. text(claim[NUMBER] or 0) .. ' ' .. limit .. ' ' .. name)
    end
    id = after
  end
  settle(touched)
  return { 'done' }
end

local function shown(name, lock)
  local holders, waiters, ended, value = {}, {}, {}, false
  local id = lock[HOLDERS]
  while id do
    local claim = get('c' .. id)
    local p = place_at(claim, name)
    local session = claim[STATE] == HELD and get('s' .. claim[OWNER])
    value = value or claim[VALUE]
    holders[#holders + 1] = session
        and { claim[RANK], claim[PLACES][p + 1], claim[OWNER], session[LABEL], now - claim[SINCE], session[ENDS] - now }
      or { claim[RANK], claim[PLACES][p + 1], false, false, false, false }
    id = claim[PLACES][p + 3]
  end
  id = lock[QUEUE]
  while id do
    local claim = get('c' .. id)
    local p = place_at(claim, name)
    waiters[#waiters + 1] = { claim[OWNER], get('s' .. claim[OWNER])[LABEL], claim[PLACES][p + 1] }
    id = claim[PLACES][p + 3]
  end
  for _, packed in ipairs(get('h' .. name) or {}) do
    ended[#ended + 1] = cmsgpack.unpack(packed)
  end
  return { name, lock[LIMIT], holders, waiters, value, ended }
end

function ask.inspect(args)
  local locks = {}
  if root then
    sweep(SWEEP)
  end
  for i = 5, #args do
    look_at_holder(args[i])
    local lock = get('l' .. args[i])
    locks[#locks + 1] = lock and shown(args[i], lock) or nil
  end
  return { 'locks', locks }
end

-- args: pairs of session and request. What became of them, and when to ask again.
function ask.poll(args)
  local states = {}
  if root then
    sweep(SWEEP)
  end
  for i = 5, #args, 2 do
    local session = living(args[i])
    local claim = session and get('c' .. args[i] .. ':' .. args[i + 1])
    if not session then
      states[#states + 1] = ENDED
    elseif not claim then
      local answer = get('a' .. args[i] .. ':' .. args[i + 1])
      states[#states + 1] = answer or { 'unknown' }
    elseif claim[STATE] == WAITS then
      for p = 1, #claim[PLACES], 4 do
        look_at_holder(claim[PLACES][p])
      end
      states[#states + 1] = claim[STATE] == WAITS and { 'queued', claim[RANK] } or { 'granted', claim[RANK] }
    else
      states[#states + 1] = { 'granted', claim[RANK] }
    end
  end
  return { 'polled', next_due(), states, root and root[TOKEN] or 0 }
end

-- args: for how long, in milliseconds.
function ask.watch(args)
  if not root then
    new_root(args[4])
  end
  root[WATCHED] = math.max(root[WATCHED], now + tonumber(args[5]))
  dirty.r = true
  return { 'watched', root[INCARNATION], root[TOKEN] }
end

-- args: what is asked, the incarnation that the client knows or '', the highest token it has seen, its channel, and
-- what belongs to the question.
local function carry_out(keys, args)
  hash, due, cache, dirty, clock, outbox, events = keys[1], keys[2], {}, {}, {}, {}, {}
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
  local what = args[1]
  if what == 'acquire' then
    preload({ 'r', 's' .. args[5], 'c' .. args[5] .. ':' .. args[6], 'l' .. args[11] })
  elseif what == 'release' then
    preload({ 'r', 's' .. args[5], 'l' .. args[7] })
  end
  root = get('r')
  watched = root and root[WATCHED] > now
  if args[2] ~= '' then
    if not root then
      return { 'lost', 'gone' }
    elseif root[INCARNATION] ~= args[2] then
      return { 'lost', 'other', root[INCARNATION] }
    elseif root[TOKEN] < tonumber(args[3]) then
      return { 'lost', 'back', root[TOKEN] }
    end
  end
  local answer = ask[what](args)
  write()
  return answer
end
