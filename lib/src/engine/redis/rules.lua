-- The lock rules of palisade-core in Lua, over records in one hash. Records are read on demand and written together at the
-- end, so that a call that fails has changed nothing.
--
-- Redis compiles a script for every call, and the compiler searches the list of outer locals for each one that a function
-- uses. To keep that list short, this file is the body of a function, the constants are locals outside of it, and the
-- functions are fields of one table.

function rule.text(number)
  return string.format('%d', number)
end

-- Unpacks a stored field into the cache. Byte 33 is the `!` of an inline grant, which becomes a claim.
function rule.unpack(kind, id, field, packed)
  if packed and kind == 'l' and packed:byte() == 33 then
    return rule.inflate(id, packed)
  end
  local record = packed
  if packed and kind ~= 'e' then
    record = cmsgpack.unpack(kind == 's' and packed:sub(HEADER_LENGTH + 1) or packed)
    fields[record] = field
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
  local new = record[LOCKS] < rule.LOCKS_PER_SESSION and math.max(record[LOWEST], record[HIGHEST] + 1) or LAST_TOKEN
  return string.format('%s%013d%016d', incarnation, record[ENDS], new) .. packed
end

-- Returns a record by the letter of its kind and its name.
function rule.get(kind, id)
  local record = cache[kind][id]
  if record == nil then
    local field = kind .. id
    record = rule.unpack(kind, id, field, redis.call('HGET', hash, field))
  end
  return record
end

function rule.put(kind, id, record)
  local field = kind .. id
  cache[kind][id], dirty[field] = record, record
  if record then
    fields[record] = field
  end
end

-- Marks a record as changed; `write` stores it at the end of the call.
function rule.mark_dirty(record)
  dirty[fields[record]] = record
end

-- Calls a command with at most 1,000 arguments at a time, since Lua's `unpack` has a limit.
function rule.call_in_parts(command, key, all)
  for from = 1, #all, 1000 do
    redis.call(command, key, unpack(all, from, math.min(from + 999, #all)))
  end
end

function rule.write_due()
  local add, remove = {}, {}
  for member, at in pairs(due_changes) do
    if at then
      add[#add + 1] = at
      add[#add + 1] = member
    else
      remove[#remove + 1] = member
    end
  end
  rule.call_in_parts('ZADD', due, add)
  rule.call_in_parts('ZREM', due, remove)
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
  if token and token ~= stored_token then
    set[#set + 1] = 'token'
    set[#set + 1] = token
  end
  rule.call_in_parts('HSET', hash, set)
  rule.call_in_parts('HDEL', hash, gone)
  if next(due_changes) then
    rule.write_due()
  end
  for i = 1, #outbox, 2 do
    redis.call('PUBLISH', hash .. ':' .. outbox[i], outbox[i + 1])
  end
  if #events > 0 then
    redis.call('PUBLISH', hash .. ':events', cjson.encode(events))
  end
end

-- Sends a message to a client's channel at the end of the call.
function rule.notify(channel, message)
  outbox[#outbox + 1] = channel
  outbox[#outbox + 1] = message
end

-- Adds an event for watchers. Callers check `watched` first, since building an event costs time.
function rule.add_event(event)
  events[#events + 1] = event
end

function rule.names(claim)
  local found, entries = {}, claim[ENTRIES]
  for p = 1, #entries, 4 do
    found[#found + 1] = entries[p]
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

function rule.entry_at(claim, name)
  local entries = claim[ENTRIES]
  for p = 1, #entries, 4 do
    if entries[p] == name then
      return p
    end
  end
end

function rule.link(lock, list, id, claim, p)
  local entries, last = claim[ENTRIES], lock[list + 1]
  local name = entries[p]
  entries[p + 2], entries[p + 3] = last, false
  if last then
    local other = rule.get('c', last)
    other[ENTRIES][rule.entry_at(other, name) + 3] = id
    rule.mark_dirty(other)
  else
    lock[list] = id
  end
  lock[list + 1], lock[list + 2] = id, lock[list + 2] + 1
  rule.mark_dirty(lock)
end

-- The back link of the first claim is never read. So when the first claim is removed, the next one need not be written.
function rule.unlink(lock, list, id, claim, p)
  local entries, is_first = claim[ENTRIES], lock[list] == id
  local name, before, after = entries[p], not is_first and entries[p + 2], entries[p + 3]
  if is_first then
    lock[list] = after
  else
    local other = rule.get('c', before)
    other[ENTRIES][rule.entry_at(other, name) + 3] = after
    rule.mark_dirty(other)
  end
  if not after then
    lock[list + 1] = before
  elseif not is_first then
    local other = rule.get('c', after)
    other[ENTRIES][rule.entry_at(other, name) + 2] = before
    rule.mark_dirty(other)
  end
  lock[list + 2] = lock[list + 2] - 1
  rule.mark_dirty(lock)
end

function rule.is_free(lock, need)
  return not lock or (lock[QUEUE + 2] == 0 and lock[LIMIT] - lock[TAKEN] >= need)
end

function rule.is_shared(claim)
  local entries = claim[ENTRIES]
  for p = 2, #entries, 4 do
    if entries[p] ~= ALL then
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
    rule.mark_dirty(other)
  else
    session[HEAD] = id
  end
  session[TAIL], session[LOCKS] = id, session[LOCKS] + #claim[ENTRIES] / 4
  rule.mark_dirty(session)
end

-- Turns an inline grant into a claim, and returns the lock. Removes an inline grant whose session has ended.
function rule.inflate(name, inline)
  local token, owner, number, seconds, micros = inline:match('^!(%d+) (%d+) (%d+) (%d+) (%d+)$')
  if not rule.get('s', owner) then
    rule.put('l', name, false)
    return false
  end
  local id, entries = owner .. ':' .. number, { name, ALL, false, false }
  local since = seconds * 1000 + math.floor(micros / 1000)
  local claim = { owner, tonumber(number), HELD, tonumber(token), since, false, false, false, false, entries }
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
    rule.mark_dirty(other)
  else
    session[HEAD] = after
  end
  if after then
    local other = rule.get('c', after)
    other[PREV] = before
    rule.mark_dirty(other)
  else
    session[TAIL] = before
  end
  session[LOCKS] = session[LOCKS] - #claim[ENTRIES] / 4
  rule.mark_dirty(session)
end

-- Keeps the outcome of a request for a repeat, unless its client will not repeat it.
function rule.keep_outcome(claim, what)
  local number = claim[NUMBER]
  local session = number and rule.get('s', claim[OWNER])
  if session and number >= session[LOWEST] then
    session[HIGHEST] = math.max(session[HIGHEST], number)
    rule.mark_dirty(session)
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
  rule.add_event({ 'granted', rule.names(claim), claim[OWNER], rule.text(claim[RANK]), ticket or false, number })
  if claim[VALUE] then
    rule.add_event({ 'published', claim[ENTRIES][1], rule.text(claim[RANK]), rule.hex(claim[VALUE]) })
  end
end

function rule.hold(id, claim, token)
  claim[STATE], claim[RANK], claim[SINCE] = HELD, token, now
  local entries = claim[ENTRIES]
  for p = 1, #entries, 4 do
    local lock = rule.get('l', entries[p])
    rule.link(lock, HOLDERS, id, claim, p)
    lock[TAKEN] = lock[TAKEN] + entries[p + 1]
  end
  if rule.is_shared(claim) then
    rule.put('t', rule.text(token), id)
  end
  rule.mark_dirty(claim)
end

function rule.grant_waiting(id, claim, token, touched)
  local ticket, entries = rule.text(claim[RANK]), claim[ENTRIES]
  for p = 1, #entries, 4 do
    rule.unlink(rule.get('l', entries[p]), QUEUE, id, claim, p)
    touched[#touched + 1] = entries[p]
  end
  rule.hold(id, claim, token)
  if watched then
    rule.announce(claim, ticket)
  end
  local session = rule.get('s', claim[OWNER])
  rule.notify(session[CHANNEL], 'g ' .. claim[OWNER] .. ' ' .. rule.text(claim[NUMBER] or 0) .. ' ' .. rule.text(token))
end

function rule.leave_queue(id, claim, why, touched)
  local entries = claim[ENTRIES]
  rule.leave_session(claim)
  for p = 1, #entries, 4 do
    rule.unlink(rule.get('l', entries[p]), QUEUE, id, claim, p)
    touched[#touched + 1] = entries[p]
  end
  rule.put('c', id, false)
  if watched then
    rule.add_event({ 'left', rule.names(claim), claim[OWNER], rule.text(claim[RANK]), why })
  end
end

-- Returns the field of an ended grant, given how many had ended before at this lock.
function rule.slot(name, count)
  return string.char(97 + count % HISTORY) .. name
end

function rule.add_to_history(claim, how, stays)
  local entries, label = claim[ENTRIES], rule.get('s', claim[OWNER])[LABEL]
  for p = 1, #entries, 4 do
    local name = entries[p]
    local lock = rule.get('l', name)
    if stays or lock[HOLDERS + 2] > 1 or lock[QUEUE + 2] > 0 then
      local count = lock[PAST]
      rule.put('e', rule.slot(name, count), cmsgpack.pack({ rule.text(claim[RANK]), claim[OWNER], label, how }))
      lock[PAST] = count + 1
      rule.mark_dirty(lock)
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
function rule.free(id, claim, touched)
  local entries = claim[ENTRIES]
  for p = 1, #entries, 4 do
    local lock = rule.get('l', entries[p])
    rule.unlink(lock, HOLDERS, id, claim, p)
    lock[TAKEN] = lock[TAKEN] - entries[p + 1]
    touched[#touched + 1] = entries[p]
  end
  if rule.is_shared(claim) then
    rule.put('t', rule.text(claim[RANK]), false)
  end
  rule.put('c', id, false)
end

-- `how` is one word, or a table for a force-release.
function rule.end_grant(id, claim, how, touched)
  rule.add_to_history(claim, how, false)
  rule.leave_session(claim)
  rule.free(id, claim, touched)
  if watched then
    rule.add_event({ 'ended', rule.names(claim), claim[OWNER], rule.text(claim[RANK]), how })
  end
end

function rule.withhold(id, claim)
  rule.add_to_history(claim, 'expired', true)
  rule.leave_session(claim)
  if watched then
    rule.add_event({ 'ended', rule.names(claim), claim[OWNER], rule.text(claim[RANK]), 'expired' })
  end
  claim[STATE], claim[NUMBER], claim[VALUE], claim[SINCE] = WITHHELD, false, false, now + claim[DELAY]
  rule.mark_dirty(claim)
  due_changes['c' .. id] = claim[SINCE]
  if watched then
    rule.add_event({ 'withheld', rule.names(claim), rule.text(claim[RANK]), claim[DELAY] })
  end
end

function rule.end_withheld(id, claim, force, touched)
  due_changes['c' .. id] = false
  rule.free(id, claim, touched)
  if watched then
    rule.add_event({ 'over', rule.names(claim), rule.text(claim[RANK]), force or false })
  end
end

-- Returns when a session ends; 0 for a session that has been ended already.
function rule.ends(session)
  return session[HOW] and 0 or math.max(session[ENDS], rule.namespace()[RUN_SINCE] + session[TTL])
end

function rule.is_over(session)
  return session[ENDS] <= now and rule.ends(session) <= now
end

-- Ends the claims of a session, at most `work_left` of them. `grant_waiters` then grants the freed locks.
function rule.end_session(number, session, how, touched)
  if not session[HOW] then
    session[HOW], session[ENDS] = how, 0
    if how == 'expired' then
      -- Its inline grants remain, and `collect_inline_grants` removes them. A pass may be halfway, so the second one is the
      -- first that is certainly complete.
      rule.namespace()[PASSES] = 2
      rule.mark_dirty(root)
    end
    rule.notify(session[CHANNEL], 'e ' .. number .. ' ' .. how)
  end
  while session[HEAD] and work_left > 0 do
    local id = session[HEAD]
    local claim = rule.get('c', id)
    work_left = work_left - 1
    if claim[STATE] == WAITS then
      rule.leave_queue(id, claim, session[HOW], touched)
    elseif session[HOW] == 'expired' and claim[DELAY] then
      rule.withhold(id, claim)
    else
      rule.end_grant(id, claim, session[HOW], touched)
    end
  end
  if session[HEAD] then
    due_changes['s' .. number] = 0
    rule.mark_dirty(session)
    return
  end
  for answered = session[LOWEST], session[HIGHEST] do
    rule.put('a', number .. ':' .. rule.text(answered), false)
  end
  rule.put('s', number, false)
  due_changes['s' .. number] = false
end

function rule.is_its_turn(id, claim)
  local entries = claim[ENTRIES]
  for p = 1, #entries, 4 do
    local lock = rule.get('l', entries[p])
    if lock[QUEUE] ~= id or lock[LIMIT] - lock[TAKEN] < entries[p + 1] then
      return false
    end
  end
  return true
end

-- Grants these locks to their waiters, at most `work_left` of them, and drops locks without holders and waiters. A waiter
-- whose session has expired gets no grant.
function rule.grant_waiters(touched)
  local i = 1
  while touched[i] do
    local lock = rule.get('l', touched[i])
    -- Without free permits the waiters need not be read.
    while lock and lock[QUEUE] and lock[TAKEN] < lock[LIMIT] do
      local id = lock[QUEUE]
      local claim = rule.get('c', id)
      local session = rule.get('s', claim[OWNER])
      local is_over = rule.is_over(session)
      if not is_over and not rule.is_its_turn(id, claim) then
        break
      elseif work_left <= 0 then
        due_changes['l' .. touched[i]] = 0
        break
      elseif is_over then
        rule.end_session(claim[OWNER], session, 'expired', touched)
      else
        local token = rule.next_token()
        if not token then
          break
        end
        work_left = work_left - 1
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

-- Returns the first time in the sorted set; nil if it is empty.
function rule.first_due()
  first = first or redis.call('ZRANGE', due, 0, 0, 'WITHSCORES')
  return tonumber(first[2])
end

-- Ends expired sessions and lock-delays, at most `most` of them, and continues work that an earlier call left over.
function rule.sweep(most)
  local at, touched = rule.first_due(), {}
  if not at or at > now then
    return
  end
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', due, '-inf', now, 'LIMIT', 0, most)) do
    local kind, id = member:sub(1, 1), member:sub(2)
    local what = rule.get(kind, id)
    if kind == 'l' then
      due_changes[member] = false
      touched[#touched + 1] = id
    elseif kind == 's' then
      if not what then
        due_changes[member] = false
      elseif not rule.is_over(what) then
        due_changes[member] = rule.ends(what)
      else
        rule.end_session(id, what, 'expired', touched)
      end
    elseif not what or what[STATE] ~= WITHHELD then
      due_changes[member] = false
    else
      rule.end_withheld(id, what, nil, touched)
    end
  end
  rule.grant_waiters(touched)
end

-- Ends the first holder of a lock if it has expired, in case the sorted set was lost. If this server's clock was set back, the
-- session gets its TTL from now.
function rule.expire_holder(name)
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
      rule.mark_dirty(session)
      due_changes['s' .. claim[OWNER]] = session[ENDS]
    end
  end
  rule.grant_waiters(touched)
end

-- Returns in how many milliseconds something is due; -1 if nothing is.
function rule.next_due()
  local at = rule.first_due()
  return at and math.max(0, at - now) or -1
end

-- Scans some of the locks, and removes inline grants whose sessions have ended.
function rule.collect_inline_grants()
  if root[PASSES] == 0 and not rule.ALWAYS then
    return
  end
  local page = redis.call('HSCAN', hash, root[CURSOR], 'MATCH', 'l*', 'COUNT', 100)
  for i = 1, #page[2], 2 do
    local name, stored = page[2][i]:sub(2), page[2][i + 1]
    -- For a lock that this call has read, the cache is newer.
    if stored:byte() == 33 and cache.l[name] == nil and not rule.get('s', stored:match('^!%d+ (%d+)')) then
      rule.put('l', name, false)
    end
  end
  root[CURSOR] = page[1]
  if page[1] == '0' then
    root[PASSES] = math.max(0, root[PASSES] - 1)
  end
  rule.mark_dirty(root)
end

-- Sessions and requests.

-- Forgets the outcomes of requests below this number, which the client will not repeat.
function rule.forget_below(number, session, lowest)
  if lowest <= session[LOWEST] then
    return
  end
  for answered = session[LOWEST], math.min(lowest - 1, session[HIGHEST]) do
    rule.put('a', number .. ':' .. rule.text(answered), false)
  end
  session[LOWEST] = lowest
  rule.mark_dirty(session)
end

-- Returns a session, unless it has ended. Ends it if its time is over.
function rule.live_session(number)
  local session = rule.get('s', number)
  if session and rule.is_over(session) then
    local touched = {}
    rule.end_session(number, session, 'expired', touched)
    rule.grant_waiters(touched)
    return nil
  end
  return session
end

function rule.refused(...)
  return { 'refused', ... }
end

-- Returns the id and the claim that holds this lock with this token; otherwise nil and a refusal.
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
    if claim and not rule.entry_at(claim, name) then
      claim = nil
    end
  end
  if not claim then
    return nil, rule.refused('NotHeld', name, token)
  end
  return id, claim
end

-- The same, for a claim that this session holds and that is not withheld.
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

-- Returns a number above all tokens and session numbers: the clock in microseconds, which rises faster than they do. It may
-- be too low if the clock was set back.
function rule.number_above_all()
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end

function rule.new_root(seed, run_id)
  last = rule.number_above_all()
  local runs = run_id ~= '' and { run_id, last } or {}
  root = { redis.sha1hex(seed .. rule.text(last)):sub(1, 16), last, 0, 0, 0, '0', 0, runs }
  rule.put('r', '', root)
  dirty.about, incarnation = rule.ABOUT, root[INCARNATION]
end

function rule.last_run_id()
  local runs = root and root[RUNS] or {}
  return runs[#runs - 1] or ''
end

-- Returns the last token that was issued under a run id of the server; nil for the current run id.
function rule.last_token_of_run(run_id)
  local runs = root[RUNS]
  for i = #runs - 1, 1, -2 do
    if runs[i] == run_id then
      return runs[i + 3]
    end
  end
  -- The data are from before this run id was recorded.
  return 0
end

-- Records that the server was restarted or replaced. It may have lost writes that it had answered: every session gets its
-- whole TTL again, and tokens and session numbers continue above all that were issued.
function rule.note_run_id(run_id)
  local runs = root[RUNS]
  if run_id == '' or rule.last_run_id() == run_id then
    return
  end
  runs[#runs + 1] = run_id
  runs[#runs + 1] = last
  while #runs > 2 * rule.RUNS_KEPT do
    table.remove(runs, 1)
  end
  local above = rule.number_above_all()
  last, root[SESSION], root[RUN_SINCE] = math.max(last, above), math.max(root[SESSION], above), now
  rule.mark_dirty(root)
end

-- Requests.

-- Attaches a client after every connect: returns which of its sessions live, and which of the given grants they hold.
-- args: the server's run id, the recorded run id that the client knows, then for each session its number, the number of its
-- grants, and for each grant a lock and a token.
function requests.attach(args)
  local sessions, i = {}, 7
  if root then
    local last_token = args[6] ~= '' and rule.last_token_of_run(args[6])
    if last_token and last_token < tonumber(args[3]) then
      return { 'lost', 'back', last_token }
    end
    rule.note_run_id(args[5])
  end
  while args[i] do
    local session, held = rule.live_session(args[i]), {}
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
  return { 'attached', root and root[INCARNATION] or '', root and last or 0, sessions, rule.last_run_id() }
end

-- args: TTL, label, the server's run id.
function requests.open(args)
  if not root then
    rule.new_root(args[4], args[7] or '')
  end
  rule.sweep(8)
  rule.collect_inline_grants()
  root[SESSION] = root[SESSION] + 1
  rule.mark_dirty(root)
  local number, ttl = rule.text(root[SESSION]), tonumber(args[5])
  rule.put('s', number, { ttl, now + ttl, args[6], args[4], false, false, 0, 1, 0, false })
  due_changes['s' .. number] = now + ttl
  return { 'opened', root[SESSION], root[INCARNATION], last, rule.last_run_id() }
end

-- args: session, and locks whose inline grants become claims. A detached session needs this: other clients do not know the
-- names of its locks.
function requests.alive(args)
  if root then
    rule.sweep(8)
    rule.collect_inline_grants()
  end
  local session = rule.live_session(args[5])
  if not session then
    return ENDED
  end
  for i = 6, #args do
    rule.get('l', args[i])
  end
  session[ENDS] = now + session[TTL]
  rule.mark_dirty(session)
  due_changes['s' .. args[5]] = session[ENDS]
  return { 'done', last }
end

-- args: session, and the locks that it holds or may hold.
function requests.close(args)
  local session = rule.live_session(args[5])
  if not session then
    return ENDED
  end
  for i = 6, #args do
    rule.get('l', args[i])
  end
  local touched = {}
  rule.end_session(args[5], session, 'closed', touched)
  rule.grant_waiters(touched)
  return { 'done' }
end

-- Returns the outcome of a repeated request; nil for a new one.
function rule.earlier_outcome(args, session)
  local number, id = tonumber(args[6]), args[5] .. ':' .. args[6]
  local claim = rule.get('c', id)
  if claim then
    local entries = claim[ENTRIES]
    local is_same = #entries / 4 == (#args - 10) / 3
    for p = 1, #entries, 4 do
      local i = 11 + (p - 1) / 4 * 3
      is_same = is_same and entries[p] == args[i] and entries[p + 1] == tonumber(args[i + 1])
    end
    if not is_same then
      return rule.refused('NumberReused', number)
    end
    return claim[STATE] == WAITS and { 'queued', claim[RANK], rule.next_due() } or { 'granted', claim[RANK] }
  end
  local answer = number <= session[HIGHEST] and rule.get('a', id)
  if answer then
    return answer
  end
  if number < session[LOWEST] then
    return rule.refused('NumberForgotten', number)
  end
end

-- Returns a refusal if the kind or the holders of the locks do not allow the request.
function rule.refusal(args)
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
      id = claim[ENTRIES][rule.entry_at(claim, name) + 3]
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

-- Returns a refusal if the session would have too many locks, or a lock too many waiters.
function rule.over_limit(args, session, free)
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

function rule.new_claim(args)
  local entries = {}
  for i = 11, #args, 3 do
    local name, need = args[i], tonumber(args[i + 1])
    entries[#entries + 1] = name
    entries[#entries + 1] = need
    entries[#entries + 1] = false
    entries[#entries + 1] = false
    if not rule.get('l', name) then
      rule.put('l', name, { tonumber(args[i + 2]), 0, false, false, 0, false, false, 0, 0 })
    end
  end
  local delay = args[9] ~= '' and tonumber(args[9])
  local value = args[10] ~= '' and args[10]:sub(2)
  return { args[5], tonumber(args[6]), WAITS, 0, now, delay, value, false, false, entries }
end

function rule.acquire(args, session, patience)
  local number, free = args[5], rule.all_free(args)
  if not free then
    rule.sweep(SWEEP)
    for i = 11, #args, 3 do
      local lock = rule.get('l', args[i])
      -- If there are waiters, their polls expire the holder.
      if patience == 'try' or not (lock and lock[QUEUE]) then
        rule.expire_holder(args[i])
      end
    end
    free = rule.all_free(args)
  end
  local bad = rule.refusal(args)
  if bad then
    return bad
  elseif not free and patience == 'try' then
    return { 'busy' }
  end
  bad = rule.over_limit(args, session, free)
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
  local id, claim = number .. ':' .. args[6], rule.new_claim(args)
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
  rule.mark_dirty(root)
  claim[RANK] = root[ARRIVAL]
  for p = 1, #claim[ENTRIES], 4 do
    rule.link(rule.get('l', claim[ENTRIES][p]), QUEUE, id, claim, p)
  end
  if watched then
    rule.add_event({ 'queued', rule.names(claim), number, rule.text(claim[RANK]) })
  end
  return { 'queued', claim[RANK], rule.next_due() }
end

-- args: session, request, patience.LOWEST (`wait` or `try`, and the lowest request number that the client may repeat), reentry,
-- lock-delay, value, then for each lock its name, the permits needed, and all its permits.
function requests.acquire(args)
  local session = rule.live_session(args[5])
  if not session then
    return ENDED
  end
  local patience, lowest = args[7]:match('^(%a+)%.(%d+)$')
  rule.forget_below(args[5], session, tonumber(lowest))
  local answer = rule.earlier_outcome(args, session)
  if not answer then
    answer = rule.acquire(args, session, patience)
    if answer[1] == 'busy' or answer[1] == 'refused' then
      rule.keep_outcome({ args[5], tonumber(args[6]) }, answer)
    end
  end
  return answer
end

-- args: session, request, and its first lock, if the client knows it.
function requests.cancel(args)
  local number, request = args[5], tonumber(args[6])
  local session = rule.live_session(number)
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
    rule.keep_outcome(claim, rule.refused('Withdrawn', request))
    rule.grant_waiters(touched)
  elseif request >= session[LOWEST] and not (request <= session[HIGHEST] and rule.get('a', id)) then
    -- The request has not arrived yet. Refuse it when it does.
    rule.keep_outcome({ number, request }, rule.refused('Withdrawn', request))
  end
  return { 'gone' }
end

-- args: session, the lowest request number that the client may repeat, lock, token, and `once` if the client has sent the
-- grant's acquire only once. Then no late copy of the acquire can arrive, and its outcome need not be kept.
function requests.release(args)
  local number = args[5]
  local session = rule.live_session(number)
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
    rule.keep_outcome(claim, { 'granted', claim[RANK] })
  end
  rule.end_grant(id, claim, 'released', touched)
  rule.grant_waiters(touched)
  return { 'done' }
end

function requests.publish(args)
  if not rule.live_session(args[5]) then
    return ENDED
  end
  local id, claim = rule.held_by(args[5], args[6], tonumber(args[7]))
  if not id then
    return claim
  elseif #claim[ENTRIES] ~= 4 or claim[ENTRIES][2] ~= ALL then
    return rule.refused('ValueNotPossible')
  end
  claim[VALUE] = args[8]
  rule.mark_dirty(claim)
  if watched then
    rule.add_event({ 'published', args[6], rule.text(claim[RANK]), rule.hex(args[8]) })
  end
  return { 'done' }
end

-- args: lock, token or '', the label of the caller, the reason.
function requests.force(args)
  if not root then
    return rule.refused('NoHolder', args[5])
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
      id = claim[ENTRIES][rule.entry_at(claim, name) + 3]
    end
    if #found == 0 then
      return rule.refused('NoHolder', name)
    end
  end
  local moved_to = rule.next_token()
  if not moved_to then
    return rule.refused('TokensExhausted')
  end
  local force, touched = { args[7], args[8], rule.text(moved_to) }, {}
  for _, id in ipairs(found) do
    local claim = rule.get('c', id)
    if claim[STATE] == HELD then
      local session = rule.get('s', claim[OWNER])
      rule.keep_outcome(claim, { 'granted', claim[RANK] })
      rule.end_grant(id, claim, force, touched)
      rule.notify(session[CHANNEL], 'f ' .. claim[OWNER] .. ' ' .. rule.text(claim[RANK]) .. ' ' .. rule.text(moved_to) .. ' '
        .. #args[7] .. ' ' .. args[7] .. args[8])
    else
      rule.end_withheld(id, claim, force, touched)
    end
  end
  rule.grant_waiters(touched)
  return { 'forced', #found, moved_to }
end

-- args: lock, limit.
function requests.resize(args)
  local name, limit = args[5], tonumber(args[6])
  local lock = root and rule.get('l', name)
  if not lock then
    return rule.refused('NoSuchLock', name)
  elseif lock[LIMIT] == ALL then
    return rule.refused('WrongKind', name, ALL, limit)
  end
  lock[LIMIT] = limit
  rule.mark_dirty(lock)
  if watched then
    rule.add_event({ 'resized', name, limit })
  end
  local touched, id = { name }, lock[QUEUE]
  while id do
    local claim = rule.get('c', id)
    local p = rule.entry_at(claim, name)
    local after = claim[ENTRIES][p + 3]
    if claim[ENTRIES][p + 1] > limit then
      local bad = rule.refused('ResizedBelow', name, limit)
      local session = rule.get('s', claim[OWNER])
      rule.leave_queue(id, claim, bad, touched)
      rule.keep_outcome(claim, bad)
      rule.notify(session[CHANNEL], 'z ' .. claim[OWNER] .. ' ' .. rule.text(claim[NUMBER] or 0) .. ' ' .. limit .. ' ' .. name)
    end
    id = after
  end
  rule.grant_waiters(touched)
  return { 'done' }
end

-- args: a token, and the server's run id. Every later token is above it. Held locks keep their tokens.
function requests.raise(args)
  local above = tonumber(args[5])
  if not root then
    rule.new_root(args[4], args[6])
  end
  local is_new = last < above
  last = math.max(last, above)
  -- Write even without a change: WAIT waits for replicas up to the last write of the connection.
  rule.mark_dirty(root)
  return { 'raised', is_new and 1 or 0, root[INCARNATION], last }
end

function rule.describe(name, lock)
  local holders, waiters, ended, value = {}, {}, {}, false
  local id = lock[HOLDERS]
  while id do
    local claim = rule.get('c', id)
    local p = rule.entry_at(claim, name)
    local session = claim[STATE] == HELD and rule.get('s', claim[OWNER])
    value = value or claim[VALUE]
    holders[#holders + 1] = session
        and { claim[RANK], claim[ENTRIES][p + 1], claim[OWNER], session[LABEL], now - claim[SINCE], rule.ends(session) - now }
      or { claim[RANK], claim[ENTRIES][p + 1], false, false, false, false }
    id = claim[ENTRIES][p + 3]
  end
  id = lock[QUEUE]
  while id do
    local claim = rule.get('c', id)
    local p = rule.entry_at(claim, name)
    waiters[#waiters + 1] = { claim[OWNER], rule.get('s', claim[OWNER])[LABEL], claim[ENTRIES][p + 1] }
    id = claim[ENTRIES][p + 3]
  end
  local count = lock[PAST]
  for i = math.max(0, count - HISTORY), count - 1 do
    ended[#ended + 1] = cmsgpack.unpack(rule.get('e', rule.slot(name, i)))
  end
  return { name, lock[LIMIT], holders, waiters, value, ended }
end

function requests.inspect(args)
  local locks = {}
  if root then
    rule.sweep(SWEEP)
  end
  for i = 5, #args do
    rule.expire_holder(args[i])
    local lock = rule.get('l', args[i])
    locks[#locks + 1] = lock and rule.describe(args[i], lock) or nil
  end
  return { 'locks', locks }
end

-- args: pairs of session and request. Returns their states, and when to poll again.
function requests.poll(args)
  local states = {}
  if root then
    rule.sweep(SWEEP)
  end
  for i = 5, #args, 2 do
    local session = rule.live_session(args[i])
    local claim = session and rule.get('c', args[i] .. ':' .. args[i + 1])
    if not session then
      states[#states + 1] = ENDED
    elseif not claim then
      local answer = rule.get('a', args[i] .. ':' .. args[i + 1])
      states[#states + 1] = answer or { 'unknown' }
    elseif claim[STATE] == WAITS then
      for p = 1, #claim[ENTRIES], 4 do
        rule.expire_holder(claim[ENTRIES][p])
      end
      states[#states + 1] = claim[STATE] == WAITS and { 'queued', claim[RANK] } or { 'granted', claim[RANK] }
    else
      states[#states + 1] = { 'granted', claim[RANK] }
    end
  end
  return { 'polled', rule.next_due(), states, root and last or 0 }
end

-- args: the lease in milliseconds.
function requests.watch(args)
  if not root then
    rule.new_root(args[4], '')
  end
  root[WATCHED], watched = math.max(root[WATCHED], now + tonumber(args[5])), true
  rule.mark_dirty(root)
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
    elseif root and root[RUN_SINCE] > now then
      -- The clock was set back.
      root[RUN_SINCE] = now
      rule.mark_dirty(root)
    end
  end
  return root
end

-- Returns a data loss, unless this is the namespace that the client knows and the token counter has not gone back. A session
-- with the same incarnation in its header saves reading the root.
function rule.data_lost(known, seen, session)
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

-- Resets the state that an earlier call has left.
function rule.begin(keys)
  hash, due, first, root = keys[1], keys[2], nil, nil
  cache, fields = { r = {}, s = {}, l = {}, c = {}, e = {}, a = {}, t = {} }, {}
  dirty, due_changes, outbox, events, work_left = {}, {}, {}, {}, rule.WORK
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end

-- args: the name of the request, the incarnation that the client knows or '', the highest token that it has seen, its channel,
-- and the arguments of the request. `read` has the last token, the session and the lock, if the fast path has read them. `run_id`
-- is the server's, for callers that do not attach.
function rule.perform(keys, args, read, run_id)
  rule.begin(keys)
  local what, known, session, lock = args[1], args[2], args[5], nil
  if what == 'acquire' or what == 'release' then
    lock = args[what == 'acquire' and 11 or 7]
    read = read or redis.call('HMGET', hash, 'token', 's' .. session, 'l' .. lock)
  else
    read = { redis.call('HGET', hash, 'token') }
  end
  stored_token, incarnation = read[1], known
  last = stored_token and tonumber(stored_token:match('%d+'))
  if what ~= 'release' or known == '' then
    rule.namespace()
  end
  local loss = known ~= '' and rule.data_lost(known, args[3], read[2])
  if loss then
    return loss
  end
  watched = stored_token and stored_token:byte() == 119 and rule.namespace()[WATCHED] > now
  if run_id and root then
    rule.note_run_id(run_id)
  end
  if lock then
    rule.unpack('s', session, 's' .. session, read[2])
    rule.unpack('l', lock, 'l' .. lock, read[3])
  end
  local answer = requests[what](args)
  rule.write()
  return answer
end
