-- The rules of locks, over records in one hash. Records are read on demand and written together at the end, so that a
-- call that fails has changed nothing.
--
-- A script is compiled for every call, and the compiler searches the list of locals of a level for each one that a function
-- uses. To keep that list short, this file is the body of a function, the constants are locals outside of it, and the rules
-- are fields of one table.

function rule.text(number)
  return string.format('%d', number)
end

-- Unpacks a field into the cache.
function rule.take_in(kind, id, field, packed)
  if packed and kind == 'l' and packed:byte() == 33 then
    return rule.inflate(id, packed)
  end
  local record = packed
  if packed and kind ~= 'e' then
    record = cmsgpack.unpack(kind == 's' and packed:sub(FRONT + 1) or packed)
    named[record] = field
  end
  cache[kind][id] = record
  return record
end

function rule.pack(field, record)
  if type(record) == 'string' and field:byte() ~= 116 then
    return record
  end
  local packed = cmsgpack.pack(record)
  if field:byte() ~= 115 then
    return packed
  end
  local new = record[LOCKS] < rule.LOCKS_PER_SESSION and math.max(record[LOW], record[TOP] + 1) or LAST_TOKEN
  return string.format('%s%013d%016d', incarnation, record[ENDS], new) .. packed
end

-- Returns a record by the letter of its kind and its name.
function rule.get(kind, id)
  local record = cache[kind][id]
  if record == nil then
    local field = kind .. id
    record = rule.take_in(kind, id, field, redis.call('HGET', hash, field))
  end
  return record
end

function rule.put(kind, id, record)
  local field = kind .. id
  cache[kind][id], dirty[field] = record, record
  if record then
    named[record] = field
  end
end

-- Marks a changed record, to be written.
function rule.keep(record)
  dirty[named[record]] = record
end

function rule.in_parts(command, key, all)
  for from = 1, #all, 1000 do
    redis.call(command, key, unpack(all, from, math.min(from + 999, #all)))
  end
end

function rule.write_clock()
  local add, over = {}, {}
  for member, at in pairs(clock) do
    if at then
      add[#add + 1] = at
      add[#add + 1] = member
    else
      over[#over + 1] = member
    end
  end
  rule.in_parts('ZADD', due, add)
  rule.in_parts('ZREM', due, over)
end

function rule.write()
  local set, gone = {}, {}
  for field, record in pairs(dirty) do
    if record then
      set[#set + 1] = field
      set[#set + 1] = rule.pack(field, record)
    else
      gone[#gone + 1] = field
    end
  end
  local token = last and (watched and 'w' or '') .. rule.text(last)
  if token and token ~= found then
    set[#set + 1] = 'token'
    set[#set + 1] = token
  end
  rule.in_parts('HSET', hash, set)
  rule.in_parts('HDEL', hash, gone)
  if next(clock) then
    rule.write_clock()
  end
  for i = 1, #outbox, 2 do
    redis.call('PUBLISH', hash .. ':' .. outbox[i], outbox[i + 1])
  end
  if #events > 0 then
    redis.call('PUBLISH', hash .. ':events', cjson.encode(events))
  end
end

function rule.tell(channel, message)
  outbox[#outbox + 1] = channel
  outbox[#outbox + 1] = message
end

-- Records an event. Callers do so only while there is a watch, since it costs time.
function rule.happened(event)
  events[#events + 1] = event
end

function rule.names(claim)
  local found, places = {}, claim[PLACES]
  for p = 1, #places, 4 do
    found[#found + 1] = places[p]
  end
  return found
end

function rule.next_token()
  if last >= LAST_TOKEN then
    return nil
  end
  last = last + 1
  return last
end

-- Lists of a lock: its holders, and its queue.

function rule.place_at(claim, name)
  local places = claim[PLACES]
  for p = 1, #places, 4 do
    if places[p] == name then
      return p
    end
  end
end

function rule.link(lock, list, id, claim, p)
  local places, last = claim[PLACES], lock[list + 1]
  local name = places[p]
  places[p + 2], places[p + 3] = last, false
  if last then
    local other = rule.get('c', last)
    other[PLACES][rule.place_at(other, name) + 3] = id
    rule.keep(other)
  else
    lock[list] = id
  end
  lock[list + 1], lock[list + 2] = id, lock[list + 2] + 1
  rule.keep(lock)
end

-- The back link of the first claim is never read. So when the first one goes, the next one need not be written.
function rule.unlink(lock, list, id, claim, p)
  local places, is_first = claim[PLACES], lock[list] == id
  local name, before, after = places[p], not is_first and places[p + 2], places[p + 3]
  if is_first then
    lock[list] = after
  else
    local other = rule.get('c', before)
    other[PLACES][rule.place_at(other, name) + 3] = after
    rule.keep(other)
  end
  if not after then
    lock[list + 1] = before
  elseif not is_first then
    local other = rule.get('c', after)
    other[PLACES][rule.place_at(other, name) + 2] = before
    rule.keep(other)
  end
  lock[list + 2] = lock[list + 2] - 1
  rule.keep(lock)
end

function rule.is_free(lock, need)
  return not lock or (lock[QUEUE + 2] == 0 and lock[LIMIT] - lock[TAKEN] >= need)
end

function rule.is_shared(claim)
  local places = claim[PLACES]
  for p = 2, #places, 4 do
    if places[p] ~= ALL then
      return true
    end
  end
  return false
end

-- The life of a claim: created, granted, ended.

function rule.join_session(id, claim)
  local session = rule.get('s', claim[OWNER])
  local last = session[TAIL]
  claim[PREV], claim[NEXT] = last, false
  if last then
    local other = rule.get('c', last)
    other[NEXT] = id
    rule.keep(other)
  else
    session[HEAD] = id
  end
  session[TAIL], session[LOCKS] = id, session[LOCKS] + #claim[PLACES] / 4
  rule.keep(session)
end

-- Turns a line into a claim, and returns the lock. A line whose session has ended is removed.
function rule.inflate(name, line)
  local token, owner, number, seconds, micros = line:match('^!(%d+) (%d+) (%d+) (%d+) (%d+)$')
  if not rule.get('s', owner) then
    rule.put('l', name, false)
    return false
  end
  local id, places = owner .. ':' .. number, { name, ALL, false, false }
  local since = seconds * 1000 + math.floor(micros / 1000)
  local claim = { owner, tonumber(number), HELD, tonumber(token), since, false, false, false, false, places }
  rule.put('c', id, claim)
  rule.join_session(id, claim)
  local lock = { ALL, ALL, id, id, 1, false, false, 0, 0 }
  rule.put('l', name, lock)
  return lock
end

function rule.leave_session(claim)
  local session, before, after = rule.get('s', claim[OWNER]), claim[PREV], claim[NEXT]
  if before then
    local other = rule.get('c', before)
    other[NEXT] = after
    rule.keep(other)
  else
    session[HEAD] = after
  end
  if after then
    local other = rule.get('c', after)
    other[PREV] = before
    rule.keep(other)
  else
    session[TAIL] = before
  end
  session[LOCKS] = session[LOCKS] - #claim[PLACES] / 4
  rule.keep(session)
end

-- Keeps the outcome of a request, unless its session will not repeat it.
function rule.remember(claim, what)
  local number = claim[NUMBER]
  local session = number and rule.get('s', claim[OWNER])
  if session and number >= session[LOW] then
    session[TOP] = math.max(session[TOP], number)
    rule.keep(session)
    rule.put('a', claim[OWNER] .. ':' .. rule.text(number), what)
  end
end

function rule.hex(value)
  return (value:gsub('.', function(byte)
    return string.format('%02x', byte:byte())
  end))
end

function rule.announce(claim, ticket)
  local number = claim[NUMBER] and rule.text(claim[NUMBER]) or false
  rule.happened({ 'granted', rule.names(claim), claim[OWNER], rule.text(claim[RANK]), ticket or false, number })
  if claim[VALUE] then
    rule.happened({ 'published', claim[PLACES][1], rule.text(claim[RANK]), rule.hex(claim[VALUE]) })
  end
end

function rule.hold(id, claim, token)
  claim[STATE], claim[RANK], claim[SINCE] = HELD, token, now
  local places = claim[PLACES]
  for p = 1, #places, 4 do
    local lock = rule.get('l', places[p])
    rule.link(lock, HOLDERS, id, claim, p)
    lock[TAKEN] = lock[TAKEN] + places[p + 1]
  end
  if rule.is_shared(claim) then
    rule.put('t', rule.text(token), id)
  end
  rule.keep(claim)
end

function rule.grant_waiting(id, claim, token, touched)
  local ticket, places = rule.text(claim[RANK]), claim[PLACES]
  for p = 1, #places, 4 do
    rule.unlink(rule.get('l', places[p]), QUEUE, id, claim, p)
    touched[#touched + 1] = places[p]
  end
  rule.hold(id, claim, token)
  if watched then
    rule.announce(claim, ticket)
  end
  local session = rule.get('s', claim[OWNER])
  rule.tell(session[CHANNEL], 'g ' .. claim[OWNER] .. ' ' .. rule.text(claim[NUMBER] or 0) .. ' ' .. rule.text(token))
end

function rule.leave_queue(id, claim, why, touched)
  local places = claim[PLACES]
  rule.leave_session(claim)
  for p = 1, #places, 4 do
    rule.unlink(rule.get('l', places[p]), QUEUE, id, claim, p)
    touched[#touched + 1] = places[p]
  end
  rule.put('c', id, false)
  if watched then
    rule.happened({ 'left', rule.names(claim), claim[OWNER], rule.text(claim[RANK]), why })
  end
end

-- Returns the field of an ended grant, given how many had ended before at this lock.
function rule.slot(name, count)
  return string.char(97 + count % HISTORY) .. name
end

function rule.record(claim, how, stays)
  local places, label = claim[PLACES], rule.get('s', claim[OWNER])[LABEL]
  for p = 1, #places, 4 do
    local name = places[p]
    local lock = rule.get('l', name)
    if stays or lock[HOLDERS + 2] > 1 or lock[QUEUE + 2] > 0 then
      local count = lock[PAST]
      rule.put('e', rule.slot(name, count), cmsgpack.pack({ rule.text(claim[RANK]), claim[OWNER], label, how }))
      lock[PAST] = count + 1
      rule.keep(lock)
    end
  end
end

-- Removes a lock without holders and waiters.
function rule.drop(name, lock)
  for i = 0, math.min(lock[PAST], HISTORY) - 1 do
    rule.put('e', rule.slot(name, i), false)
  end
  rule.put('l', name, false)
end

-- Removes a held or withheld claim, and frees its permits.
function rule.give_back(id, claim, touched)
  local places = claim[PLACES]
  for p = 1, #places, 4 do
    local lock = rule.get('l', places[p])
    rule.unlink(lock, HOLDERS, id, claim, p)
    lock[TAKEN] = lock[TAKEN] - places[p + 1]
    touched[#touched + 1] = places[p]
  end
  if rule.is_shared(claim) then
    rule.put('t', rule.text(claim[RANK]), false)
  end
  rule.put('c', id, false)
end

-- `how` is one word, or a table for a force-release.
function rule.end_grant(id, claim, how, touched)
  rule.record(claim, how, false)
  rule.leave_session(claim)
  rule.give_back(id, claim, touched)
  if watched then
    rule.happened({ 'ended', rule.names(claim), claim[OWNER], rule.text(claim[RANK]), how })
  end
end

function rule.withhold(id, claim)
  rule.record(claim, 'expired', true)
  rule.leave_session(claim)
  if watched then
    rule.happened({ 'ended', rule.names(claim), claim[OWNER], rule.text(claim[RANK]), 'expired' })
  end
  claim[STATE], claim[NUMBER], claim[VALUE], claim[SINCE] = WITHHELD, false, false, now + claim[DELAY]
  rule.keep(claim)
  clock['c' .. id] = claim[SINCE]
  if watched then
    rule.happened({ 'withheld', rule.names(claim), rule.text(claim[RANK]), claim[DELAY] })
  end
end

function rule.end_withheld(id, claim, force, touched)
  clock['c' .. id] = false
  rule.give_back(id, claim, touched)
  if watched then
    rule.happened({ 'over', rule.names(claim), rule.text(claim[RANK]), force or false })
  end
end

-- Returns when a session ends. One that was ended stays so, whatever the clock says.
function rule.ends(session)
  return session[HOW] and 0 or math.max(session[ENDS], rule.namespace()[BEGAN] + session[TTL])
end

function rule.is_over(session)
  return session[ENDS] <= now and rule.ends(session) <= now
end

-- Ends the claims of a session, as many as one call may. `settle` then grants the freed locks.
function rule.end_session(number, session, how, touched)
  if not session[HOW] then
    session[HOW], session[ENDS] = how, 0
    if how == 'expired' then
      -- Lines of its grants may be left. Two passes from any cursor include one from the beginning.
      rule.namespace()[PASSES] = 2
      rule.keep(root)
    end
    rule.tell(session[CHANNEL], 'e ' .. number .. ' ' .. how)
  end
  while session[HEAD] and work > 0 do
    local id = session[HEAD]
    local claim = rule.get('c', id)
    work = work - 1
    if claim[STATE] == WAITS then
      rule.leave_queue(id, claim, session[HOW], touched)
    elseif session[HOW] == 'expired' and claim[DELAY] then
      rule.withhold(id, claim)
    else
      rule.end_grant(id, claim, session[HOW], touched)
    end
  end
  if session[HEAD] then
    clock['s' .. number] = 0
    rule.keep(session)
    return
  end
  for answered = session[LOW], session[TOP] do
    rule.put('a', number .. ':' .. rule.text(answered), false)
  end
  rule.put('s', number, false)
  clock['s' .. number] = false
end

function rule.is_its_turn(id, claim)
  local places = claim[PLACES]
  for p = 1, #places, 4 do
    local lock = rule.get('l', places[p])
    if lock[QUEUE] ~= id or lock[LIMIT] - lock[TAKEN] < places[p + 1] then
      return false
    end
  end
  return true
end

-- Grants these locks to their waiters, as many as one call may, and drops locks without holders and waiters. A waiter whose
-- session is over is never granted.
function rule.settle(touched)
  local i = 1
  while touched[i] do
    local lock = rule.get('l', touched[i])
    -- Without free permits there is nothing to decide, and the waiters need not be read.
    while lock and lock[QUEUE] and lock[TAKEN] < lock[LIMIT] do
      local id = lock[QUEUE]
      local claim = rule.get('c', id)
      local session = rule.get('s', claim[OWNER])
      local is_over = rule.is_over(session)
      if not is_over and not rule.is_its_turn(id, claim) then
        break
      elseif work <= 0 then
        clock['l' .. touched[i]] = 0
        break
      elseif is_over then
        rule.end_session(claim[OWNER], session, 'expired', touched)
      else
        local token = rule.next_token()
        if not token then
          break
        end
        work = work - 1
        rule.grant_waiting(id, claim, token, touched)
      end
    end
    i = i + 1
  end
  for _, name in ipairs(touched) do
    local lock = rule.get('l', name)
    if lock and lock[HOLDERS + 2] == 0 and lock[QUEUE + 2] == 0 then
      rule.drop(name, lock)
    end
  end
end

-- Time.

-- Returns when the first session, delay or lock is due; nil if none is.
function rule.first_due()
  first = first or redis.call('ZRANGE', due, 0, 0, 'WITHSCORES')
  return tonumber(first[2])
end

-- Ends sessions and delays that are overdue, `most` at most.
function rule.sweep(most)
  local at, touched = rule.first_due(), {}
  if not at or at > now then
    return
  end
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', due, '-inf', now, 'LIMIT', 0, most)) do
    local kind, id = member:sub(1, 1), member:sub(2)
    local what = rule.get(kind, id)
    if kind == 'l' then
      clock[member] = false
      touched[#touched + 1] = id
    elseif kind == 's' then
      if not what then
        clock[member] = false
      elseif not rule.is_over(what) then
        clock[member] = rule.ends(what)
      else
        rule.end_session(id, what, 'expired', touched)
      end
    elseif not what or what[STATE] ~= WITHHELD then
      clock[member] = false
    else
      rule.end_withheld(id, what, nil, touched)
    end
  end
  rule.settle(touched)
end

-- Ends the first holder of a lock if its time is over, in case the sorted set was lost. If this server's clock was set back,
-- the session ends after its TTL from now.
function rule.look_at_holder(name)
  local lock = rule.get('l', name)
  local claim = lock and lock[HOLDERS] and rule.get('c', lock[HOLDERS])
  if not claim then
    return
  end
  local touched = {}
  if claim[STATE] == WITHHELD then
    if claim[SINCE] <= now or claim[SINCE] > now + claim[DELAY] then
      rule.end_withheld(lock[HOLDERS], claim, nil, touched)
    end
  else
    local session = rule.get('s', claim[OWNER])
    if rule.is_over(session) then
      rule.end_session(claim[OWNER], session, 'expired', touched)
    elseif session[ENDS] > now + session[TTL] then
      session[ENDS] = now + session[TTL]
      rule.keep(session)
      clock['s' .. claim[OWNER]] = session[ENDS]
    end
  end
  rule.settle(touched)
end

function rule.next_due()
  local at = rule.first_due()
  return at and math.max(0, at - now) or -1
end

-- Removes lines whose sessions are over from some of the fields.
function rule.collect()
  if root[PASSES] == 0 and not rule.ALWAYS then
    return
  end
  local page = redis.call('HSCAN', hash, root[CURSOR], 'MATCH', 'l*', 'COUNT', 100)
  for i = 1, #page[2], 2 do
    local name, line = page[2][i]:sub(2), page[2][i + 1]
    -- For a lock that this call has read, the cache is newer.
    if line:byte() == 33 and cache.l[name] == nil and not rule.get('s', line:match('^!%d+ (%d+)')) then
      rule.put('l', name, false)
    end
  end
  root[CURSOR] = page[1]
  if page[1] == '0' then
    root[PASSES] = math.max(0, root[PASSES] - 1)
  end
  rule.keep(root)
end

-- Sessions and requests.

-- Forgets the outcomes of requests below this number, which the client will not repeat.
function rule.forget_below(number, session, low)
  if low <= session[LOW] then
    return
  end
  for answered = session[LOW], math.min(low - 1, session[TOP]) do
    rule.put('a', number .. ':' .. rule.text(answered), false)
  end
  session[LOW] = low
  rule.keep(session)
end

-- Returns a session, unless its time is over.
function rule.living(number)
  local session = rule.get('s', number)
  if session and rule.is_over(session) then
    local touched = {}
    rule.end_session(number, session, 'expired', touched)
    rule.settle(touched)
    return nil
  end
  return session
end

function rule.refused(...)
  return { 'refused', ... }
end

-- Returns the claim that has this lock with this token, or a refusal.
function rule.with_token(name, token)
  if token > last then
    return nil, rule.refused('NeverGranted', token, last)
  end
  local lock = rule.get('l', name)
  local id = lock and lock[HOLDERS]
  local claim = id and rule.get('c', id)
  if claim and claim[RANK] ~= token then
    id = rule.get('t', rule.text(token))
    claim = id and rule.get('c', id)
    if claim and not rule.place_at(claim, name) then
      claim = nil
    end
  end
  if not claim then
    return nil, rule.refused('NotHeld', name, token)
  end
  return id, claim
end

function rule.held_by(number, name, token)
  local id, claim = rule.with_token(name, token)
  if not id then
    return nil, claim
  elseif claim[STATE] ~= HELD then
    return nil, rule.refused('NotHeld', name, token)
  elseif number and claim[OWNER] ~= number then
    return nil, rule.refused('OtherSession', name, token)
  end
  return id, claim
end

-- Returns the clock in microseconds. Fewer tokens and sessions are issued than microseconds pass, so it is above all of
-- them, unless it was set back.
function rule.above_all()
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end

function rule.new_root(seed, run)
  last = rule.above_all()
  local runs = run ~= '' and { run, last } or {}
  root = { redis.sha1hex(seed .. rule.text(last)):sub(1, 16), last, 0, 0, 0, '0', 0, runs }
  rule.put('r', '', root)
  dirty.about, incarnation = rule.ABOUT, root[INCARNATION]
end

function rule.last_run()
  local runs = root and root[RUNS] or {}
  return runs[#runs - 1] or ''
end

-- Returns the last token that is recorded for a run of the server; nil for the current run.
function rule.last_of_run(run)
  local runs = root[RUNS]
  for i = #runs - 1, 1, -2 do
    if runs[i] == run then
      return runs[i + 3]
    end
  end
  -- The data are older than this run.
  return 0
end

-- Records that the server was restarted or replaced. It may have lost writes that it had answered: every session gets its
-- whole TTL again, and tokens and session numbers continue above all that were issued.
function rule.note_run(run)
  local runs = root[RUNS]
  if run == '' or rule.last_run() == run then
    return
  end
  runs[#runs + 1] = run
  runs[#runs + 1] = last
  while #runs > 2 * rule.RUNS_KEPT do
    table.remove(runs, 1)
  end
  local above = rule.above_all()
  last, root[SESSION], root[BEGAN] = math.max(last, above), math.max(root[SESSION], above), now
  rule.keep(root)
end

-- Requests.

-- Called after every connect: returns which sessions live, and which of the given grants they hold.
-- args: the server's run, the recorded run that the client knows, then for each session its number, the number of its grants,
-- and for each of those a lock and a token.
function ask.hello(args)
  local sessions, i = {}, 7
  if root then
    local known = args[6] ~= '' and rule.last_of_run(args[6])
    if known and known < tonumber(args[3]) then
      return { 'lost', 'back', known }
    end
    rule.note_run(args[5])
  end
  while args[i] do
    local session, held = rule.living(args[i]), {}
    local last = i + 1 + 2 * tonumber(args[i + 1])
    for grant = i + 2, last, 2 do
      local token = tonumber(args[grant + 1])
      local found, refusal = rule.held_by(args[i], args[grant], token)
      if found and session then
        held[#held + 1] = token
      elseif not found and refusal[2] == 'OtherSession' then
        return { 'lost', 'taken', token }
      end
    end
    sessions[#sessions + 1] = session and held or false
    i = last + 1
  end
  return { 'hello', root and root[INCARNATION] or '', root and last or 0, sessions, rule.last_run() }
end

-- args: TTL, label, the server's run.
function ask.open(args)
  if not root then
    rule.new_root(args[4], args[7] or '')
  end
  rule.sweep(8)
  rule.collect()
  root[SESSION] = root[SESSION] + 1
  rule.keep(root)
  local number, ttl = rule.text(root[SESSION]), tonumber(args[5])
  rule.put('s', number, { ttl, now + ttl, args[6], args[4], false, false, 0, 1, 0, false })
  clock['s' .. number] = now + ttl
  return { 'opened', root[SESSION], root[INCARNATION], last, rule.last_run() }
end

-- args: session, and the locks whose lines become claims, since a later client does not know their names.
function ask.alive(args)
  if root then
    rule.sweep(8)
    rule.collect()
  end
  local session = rule.living(args[5])
  if not session then
    return ENDED
  end
  for i = 6, #args do
    rule.get('l', args[i])
  end
  session[ENDS] = now + session[TTL]
  rule.keep(session)
  clock['s' .. args[5]] = session[ENDS]
  return { 'done', last }
end

-- args: session, and the locks that it holds or may hold.
function ask.close(args)
  local session = rule.living(args[5])
  if not session then
    return ENDED
  end
  for i = 6, #args do
    rule.get('l', args[i])
  end
  local touched = {}
  rule.end_session(args[5], session, 'closed', touched)
  rule.settle(touched)
  return { 'done' }
end

-- Returns the outcome of a repeated request; nil for a new one.
function rule.asked_before(args, session)
  local number, id = tonumber(args[6]), args[5] .. ':' .. args[6]
  local claim = rule.get('c', id)
  if claim then
    local places = claim[PLACES]
    local same = #places / 4 == (#args - 10) / 3
    for p = 1, #places, 4 do
      local i = 11 + (p - 1) / 4 * 3
      same = same and places[p] == args[i] and places[p + 1] == tonumber(args[i + 1])
    end
    if not same then
      return rule.refused('NumberReused', number)
    end
    return claim[STATE] == WAITS and { 'queued', claim[RANK], rule.next_due() } or { 'granted', claim[RANK] }
  end
  local answer = number <= session[TOP] and rule.get('a', id)
  if answer then
    return answer
  end
  if number < session[LOW] then
    return rule.refused('NumberForgotten', number)
  end
end

-- Returns a refusal if the state of the locks forbids the request.
function rule.wrong(args)
  for i = 11, #args, 3 do
    local name, limit = args[i], tonumber(args[i + 2])
    local lock = rule.get('l', name)
    if lock and lock[LIMIT] ~= limit then
      if lock[LIMIT] == ALL or limit == ALL then
        return rule.refused('WrongKind', name, lock[LIMIT], limit)
      end
      return rule.refused('LimitDiffers', name, lock[LIMIT], limit)
    end
    local id = args[8] == 'refuse' and lock and lock[HOLDERS]
    while id do
      local claim = rule.get('c', id)
      if claim[OWNER] == args[5] and claim[STATE] == HELD then
        return rule.refused('AlreadyHeld', name, claim[RANK])
      end
      id = claim[PLACES][rule.place_at(claim, name) + 3]
    end
  end
end

function rule.all_free(args)
  for i = 11, #args, 3 do
    if not rule.is_free(rule.get('l', args[i]), tonumber(args[i + 1])) then
      return false
    end
  end
  return true
end

function rule.no_room(args, session, free)
  local wanted = session[LOCKS] + (#args - 10) / 3
  if wanted > rule.LOCKS_PER_SESSION then
    return rule.refused('LocksPerSession', rule.LOCKS_PER_SESSION, wanted)
  end
  for i = 11, free and 0 or #args, 3 do
    local lock = rule.get('l', args[i])
    if lock and lock[QUEUE + 2] >= rule.WAITERS_PER_LOCK then
      return rule.refused('WaitersPerLock', rule.WAITERS_PER_LOCK, lock[QUEUE + 2] + 1)
    end
  end
end

function rule.claim_of(args)
  local places = {}
  for i = 11, #args, 3 do
    local name, need = args[i], tonumber(args[i + 1])
    places[#places + 1] = name
    places[#places + 1] = need
    places[#places + 1] = false
    places[#places + 1] = false
    if not rule.get('l', name) then
      rule.put('l', name, { tonumber(args[i + 2]), 0, false, false, 0, false, false, 0, 0 })
    end
  end
  local delay = args[9] ~= '' and tonumber(args[9])
  local value = args[10] ~= '' and args[10]:sub(2)
  return { args[5], tonumber(args[6]), WAITS, 0, now, delay, value, false, false, places }
end

function rule.acquire(args, session, patience)
  local number, free = args[5], rule.all_free(args)
  if not free then
    rule.sweep(SWEEP)
    for i = 11, #args, 3 do
      local lock = rule.get('l', args[i])
      -- With waiters, their polls check the holder.
      if patience == 'try' or not (lock and lock[QUEUE]) then
        rule.look_at_holder(args[i])
      end
    end
    free = rule.all_free(args)
  end
  local bad = rule.wrong(args)
  if bad then
    return bad
  elseif not free and patience == 'try' then
    return { 'busy' }
  end
  bad = rule.no_room(args, session, free)
  if bad then
    return bad
  end
  local token
  if free then
    token = rule.next_token()
    if not token then
      return rule.refused('TokensExhausted')
    end
  end
  local id, claim = number .. ':' .. args[6], rule.claim_of(args)
  rule.put('c', id, claim)
  rule.join_session(id, claim)
  if token then
    rule.hold(id, claim, token)
    if watched then
      rule.announce(claim)
    end
    return { 'granted', token }
  end
  root[ARRIVAL] = root[ARRIVAL] + 1
  rule.keep(root)
  claim[RANK] = root[ARRIVAL]
  for p = 1, #claim[PLACES], 4 do
    rule.link(rule.get('l', claim[PLACES][p]), QUEUE, id, claim, p)
  end
  if watched then
    rule.happened({ 'queued', rule.names(claim), number, rule.text(claim[RANK]) })
  end
  return { 'queued', claim[RANK], rule.next_due() }
end

-- args: session, request, patience.low, reentry, delay, value, then for each lock name, need, limit.
function ask.acquire(args)
  local session = rule.living(args[5])
  if not session then
    return ENDED
  end
  local patience, low = args[7]:match('^(%a+)%.(%d+)$')
  rule.forget_below(args[5], session, tonumber(low))
  local answer = rule.asked_before(args, session)
  if not answer then
    answer = rule.acquire(args, session, patience)
    if answer[1] == 'busy' or answer[1] == 'refused' then
      rule.remember({ args[5], tonumber(args[6]) }, answer)
    end
  end
  return answer
end

-- args: session, request, and its first lock, if the client knows it.
function ask.cancel(args)
  local number, request = args[5], tonumber(args[6])
  local session = rule.living(number)
  if not session then
    return ENDED
  end
  if args[7] then
    rule.get('l', args[7])
  end
  local id = number .. ':' .. args[6]
  local claim = rule.get('c', id)
  if claim and claim[STATE] ~= WAITS then
    return { 'granted', claim[RANK] }
  elseif claim then
    local touched = {}
    rule.leave_queue(id, claim, 'cancelled', touched)
    rule.remember(claim, rule.refused('Withdrawn', request))
    rule.settle(touched)
  elseif request >= session[LOW] and not (request <= session[TOP] and rule.get('a', id)) then
    -- The request has not arrived. It is refused when it does.
    rule.remember({ number, request }, rule.refused('Withdrawn', request))
  end
  return { 'gone' }
end

-- args: session, low, lock, token, and `once` if the grant's acquire was sent once only, so that no copy of it can arrive.
function ask.release(args)
  local number = args[5]
  local session = rule.living(number)
  if not session then
    return ENDED
  end
  rule.forget_below(number, session, tonumber(args[6]))
  local id, claim = rule.held_by(number, args[7], tonumber(args[8]))
  if not id then
    return claim
  end
  local touched = {}
  if args[9] ~= 'once' then
    rule.remember(claim, { 'granted', claim[RANK] })
  end
  rule.end_grant(id, claim, 'released', touched)
  rule.settle(touched)
  return { 'done' }
end

function ask.publish(args)
  if not rule.living(args[5]) then
    return ENDED
  end
  local id, claim = rule.held_by(args[5], args[6], tonumber(args[7]))
  if not id then
    return claim
  elseif #claim[PLACES] ~= 4 or claim[PLACES][2] ~= ALL then
    return rule.refused('ValueNotPossible')
  end
  claim[VALUE] = args[8]
  rule.keep(claim)
  if watched then
    rule.happened({ 'published', args[6], rule.text(claim[RANK]), rule.hex(args[8]) })
  end
  return { 'done' }
end

-- args: lock, token or '', the label of the caller, the reason.
function ask.force(args)
  if not root then
    return rule.refused('NobodyHolds', args[5])
  end
  rule.sweep(SWEEP)
  local name, found = args[5], {}
  if args[6] ~= '' then
    local id, claim = rule.with_token(name, tonumber(args[6]))
    if not id then
      return claim
    end
    found[1] = id
  else
    local lock = rule.get('l', name)
    local id = lock and lock[HOLDERS]
    while id do
      found[#found + 1] = id
      local claim = rule.get('c', id)
      id = claim[PLACES][rule.place_at(claim, name) + 3]
    end
    if #found == 0 then
      return rule.refused('NobodyHolds', name)
    end
  end
  local moved = rule.next_token()
  if not moved then
    return rule.refused('TokensExhausted')
  end
  local force, touched = { args[7], args[8], rule.text(moved) }, {}
  for _, id in ipairs(found) do
    local claim = rule.get('c', id)
    if claim[STATE] == HELD then
      local session = rule.get('s', claim[OWNER])
      rule.remember(claim, { 'granted', claim[RANK] })
      rule.end_grant(id, claim, force, touched)
      rule.tell(session[CHANNEL], 'f ' .. claim[OWNER] .. ' ' .. rule.text(claim[RANK]) .. ' ' .. rule.text(moved) .. ' '
        .. #args[7] .. ' ' .. args[7] .. args[8])
    else
      rule.end_withheld(id, claim, force, touched)
    end
  end
  rule.settle(touched)
  return { 'forced', #found, moved }
end

-- args: lock, limit.
function ask.resize(args)
  local name, limit = args[5], tonumber(args[6])
  local lock = root and rule.get('l', name)
  if not lock then
    return rule.refused('NoSuchLock', name)
  elseif lock[LIMIT] == ALL then
    return rule.refused('WrongKind', name, ALL, limit)
  end
  lock[LIMIT] = limit
  rule.keep(lock)
  if watched then
    rule.happened({ 'resized', name, limit })
  end
  local touched, id = { name }, lock[QUEUE]
  while id do
    local claim = rule.get('c', id)
    local p = rule.place_at(claim, name)
    local after = claim[PLACES][p + 3]
    if claim[PLACES][p + 1] > limit then
      local bad = rule.refused('ResizedBelow', name, limit)
      local session = rule.get('s', claim[OWNER])
      rule.leave_queue(id, claim, bad, touched)
      rule.remember(claim, bad)
      rule.tell(session[CHANNEL], 'z ' .. claim[OWNER] .. ' ' .. rule.text(claim[NUMBER] or 0) .. ' ' .. limit .. ' ' .. name)
    end
    id = after
  end
  rule.settle(touched)
  return { 'done' }
end

-- args: a token, and the server's run. Every later token is above it. Held locks keep their tokens.
function ask.raise(args)
  local above = tonumber(args[5])
  if not root then
    rule.new_root(args[4], args[6])
  end
  local is_new = last < above
  last = math.max(last, above)
  -- Written even without a change: WAIT waits for the last write of the connection.
  rule.keep(root)
  return { 'raised', is_new and 1 or 0, root[INCARNATION], last }
end

function rule.shown(name, lock)
  local holders, waiters, ended, value = {}, {}, {}, false
  local id = lock[HOLDERS]
  while id do
    local claim = rule.get('c', id)
    local p = rule.place_at(claim, name)
    local session = claim[STATE] == HELD and rule.get('s', claim[OWNER])
    value = value or claim[VALUE]
    holders[#holders + 1] = session
        and { claim[RANK], claim[PLACES][p + 1], claim[OWNER], session[LABEL], now - claim[SINCE], rule.ends(session) - now }
      or { claim[RANK], claim[PLACES][p + 1], false, false, false, false }
    id = claim[PLACES][p + 3]
  end
  id = lock[QUEUE]
  while id do
    local claim = rule.get('c', id)
    local p = rule.place_at(claim, name)
    waiters[#waiters + 1] = { claim[OWNER], rule.get('s', claim[OWNER])[LABEL], claim[PLACES][p + 1] }
    id = claim[PLACES][p + 3]
  end
  local count = lock[PAST]
  for i = math.max(0, count - HISTORY), count - 1 do
    ended[#ended + 1] = cmsgpack.unpack(rule.get('e', rule.slot(name, i)))
  end
  return { name, lock[LIMIT], holders, waiters, value, ended }
end

function ask.inspect(args)
  local locks = {}
  if root then
    rule.sweep(SWEEP)
  end
  for i = 5, #args do
    rule.look_at_holder(args[i])
    local lock = rule.get('l', args[i])
    locks[#locks + 1] = lock and rule.shown(args[i], lock) or nil
  end
  return { 'locks', locks }
end

-- args: pairs of session and request. Returns their states, and when to poll again.
function ask.poll(args)
  local states = {}
  if root then
    rule.sweep(SWEEP)
  end
  for i = 5, #args, 2 do
    local session = rule.living(args[i])
    local claim = session and rule.get('c', args[i] .. ':' .. args[i + 1])
    if not session then
      states[#states + 1] = ENDED
    elseif not claim then
      local answer = rule.get('a', args[i] .. ':' .. args[i + 1])
      states[#states + 1] = answer or { 'unknown' }
    elseif claim[STATE] == WAITS then
      for p = 1, #claim[PLACES], 4 do
        rule.look_at_holder(claim[PLACES][p])
      end
      states[#states + 1] = claim[STATE] == WAITS and { 'queued', claim[RANK] } or { 'granted', claim[RANK] }
    else
      states[#states + 1] = { 'granted', claim[RANK] }
    end
  end
  return { 'polled', rule.next_due(), states, root and last or 0 }
end

-- args: the lease in milliseconds.
function ask.watch(args)
  if not root then
    rule.new_root(args[4], '')
  end
  root[WATCHED], watched = math.max(root[WATCHED], now + tonumber(args[5])), true
  rule.keep(root)
  return { 'watched', root[INCARNATION], last }
end

-- Returns the root record, if it exists. A release does not need it.
function rule.namespace()
  if not root then
    root = rule.get('r', '')
    incarnation = root and root[INCARNATION]
    if root and #root ~= RUNS then
      error({ err = 'ERR palisade: an older version of Palisade has written ' .. hash
        .. '; end all clients, delete that key, and connect again' })
    elseif root and root[BEGAN] > now then
      -- The clock was set back.
      root[BEGAN] = now
      rule.keep(root)
    end
  end
  return root
end

-- Returns a loss, unless this is the namespace that the client knows, with every token that it has seen. A session of the
-- same incarnation proves the first part.
function rule.lost(known, seen, session)
  if not (session and session:sub(1, 16) == known) then
    if not rule.namespace() then
      return { 'lost', 'gone' }
    elseif incarnation ~= known then
      return { 'lost', 'other', incarnation }
    end
  end
  if (last or 0) < tonumber(seen) then
    return { 'lost', 'back', last or 0 }
  end
end

-- Resets the state of the call before.
function rule.begin(keys)
  hash, due, first, root = keys[1], keys[2], nil, nil
  cache, named = { r = {}, s = {}, l = {}, c = {}, e = {}, a = {}, t = {} }, {}
  dirty, clock, outbox, events, work = {}, {}, {}, {}, rule.WORK
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end

-- args: the name of the request, the incarnation that the client knows or '', the highest token that it has seen, its channel,
-- and the arguments of the request. `read` has the last token, the session and the lock, if the fast path has read them. `run`
-- is the server's run id, for clients that do not send hello.
function rule.carry_out(keys, args, read, run)
  rule.begin(keys)
  local what, known, session, lock = args[1], args[2], args[5], nil
  if what == 'acquire' or what == 'release' then
    lock = args[what == 'acquire' and 11 or 7]
    read = read or redis.call('HMGET', hash, 'token', 's' .. session, 'l' .. lock)
  else
    read = { redis.call('HGET', hash, 'token') }
  end
  found, incarnation = read[1], known
  last = found and tonumber(found:match('%d+'))
  if what ~= 'release' or known == '' then
    rule.namespace()
  end
  local lost = known ~= '' and rule.lost(known, args[3], read[2])
  if lost then
    return lost
  end
  watched = found and found:byte() == 119 and rule.namespace()[WATCHED] > now
  if run and root then
    rule.note_run(run)
  end
  if lock then
    rule.take_in('s', session, 's' .. session, read[2])
    rule.take_in('l', lock, 'l' .. lock, read[3])
  end
  local answer = ask[what](args)
  rule.write()
  return answer
end
