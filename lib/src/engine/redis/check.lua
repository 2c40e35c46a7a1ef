-- Checks that the stored data are consistent. Changes nothing.

-- The most fields that one call checks, since it blocks Redis.
local MOST_FIELDS = 500000

-- Walks a list of a lock and reports errors in it. `each` receives every claim of the list.
function rule.check_list(name, lock, list, report, each)
  local id, before, count = lock[list], false, 0
  while id do
    local claim = rule.get('c', id)
    local p = claim and rule.entry_at(claim, name)
    if not p then
      return report(name .. ': ' .. id .. ' is in its list, but is not a claim of it')
    elseif before and claim[ENTRIES][p + 2] ~= before then
      return report(name .. ': ' .. id .. ' has a wrong link to the claim before it')
    end
    count = count + 1
    if count > lock[list + 2] then
      return report(name .. ': a list is longer than ' .. lock[list + 2])
    end
    each(id, claim, claim[ENTRIES][p + 1])
    before, id = id, claim[ENTRIES][p + 3]
  end
  if count ~= lock[list + 2] or (lock[list + 1] or false) ~= before then
    report(name .. ': a list has ' .. count .. ' claims, but is recorded with ' .. lock[list + 2])
  end
end

function rule.check_lock(name, lock, report, seen, tokens)
  local taken, rank = 0, 0
  rule.check_list(name, lock, HOLDERS, report, function(id, claim, need)
    taken, seen[id .. ' ' .. name] = taken + need, true
    if claim[STATE] == WAITS then
      report(name .. ': ' .. id .. ' holds it and waits')
    elseif claim[RANK] > last then
      report(name .. ': token ' .. rule.text(claim[RANK]) .. ' is above the last one')
    elseif tokens[claim[RANK]] and tokens[claim[RANK]] ~= id then
      report(name .. ': token ' .. rule.text(claim[RANK]) .. ' is held twice')
    end
    tokens[claim[RANK]] = id
  end)
  rule.check_list(name, lock, QUEUE, report, function(id, claim)
    seen[id .. ' ' .. name] = true
    if claim[STATE] ~= WAITS then
      report(name .. ': ' .. id .. ' is in its queue and does not wait')
    elseif claim[RANK] <= rank then
      report(name .. ': ' .. id .. ' has a lower rank than the claim before it')
    end
    rank = claim[RANK]
  end)
  if taken ~= lock[TAKEN] then
    report(name .. ': ' .. taken .. ' permits are taken, but ' .. lock[TAKEN] .. ' are recorded')
  elseif lock[LIMIT] == ALL and lock[HOLDERS + 2] > 1 and taken >= ALL then
    report(name .. ': it has an exclusive holder and others')
  elseif lock[HOLDERS + 2] == 0 and lock[QUEUE + 2] == 0 then
    report(name .. ': it has neither a holder nor a waiter')
  end
  local head = lock[QUEUE] and rule.get('c', lock[QUEUE])
  local session = head and rule.get('s', head[OWNER])
  if session and not session[HOW] and rule.is_its_turn(lock[QUEUE], head) and last < LAST_TOKEN
    and not redis.call('ZSCORE', due, 'l' .. name)
  then
    report(name .. ': ' .. lock[QUEUE] .. ' waits although it is its turn')
  end
end

function rule.check_session(number, packed, report)
  local session, before, locks = rule.get('s', number), false, 0
  local id = session[HEAD]
  while id do
    local claim = rule.get('c', id)
    if not claim or claim[OWNER] ~= number or claim[PREV] ~= before or claim[STATE] == WITHHELD then
      return report('session ' .. number .. ': ' .. id .. ' is in its list, but does not match')
    end
    locks = locks + #claim[ENTRIES] / 4
    before, id = id, claim[NEXT]
  end
  if session[TAIL] ~= before or session[LOCKS] ~= locks then
    report('session ' .. number .. ': it has ' .. locks .. ' locks, but ' .. session[LOCKS] .. ' are recorded')
  elseif rule.pack('s' .. number, session) ~= packed then
    report('session ' .. number .. ': its header does not match its record')
  elseif not redis.call('ZSCORE', due, 's' .. number) then
    report('session ' .. number .. ': it has no time at which it ends')
  end
end

function rule.check_claim(id, claim, report, seen)
  for _, name in ipairs(rule.names(claim)) do
    if not seen[id .. ' ' .. name] then
      report(id .. ': it is a claim of ' .. name .. ', which does not list it')
    end
  end
  if claim[STATE] ~= WITHHELD and not rule.get('s', claim[OWNER]) then
    report(id .. ': its session is gone')
  elseif claim[STATE] == WITHHELD and not redis.call('ZSCORE', due, 'c' .. id) then
    report(id .. ': it is withheld without a time at which that ends')
  elseif claim[STATE] ~= WAITS and rule.is_shared(claim) and rule.get('t', rule.text(claim[RANK])) ~= id then
    report(id .. ': its token does not lead to it')
  end
end

-- Checks one field. Collects in `seen` the claims that locks list, and in `tokens` the claim of each token, for later checks.
function rule.check_field(field, packed, report, seen, tokens)
  local kind, id = field:sub(1, 1), field:sub(2)
  if field == 'token' or field == 'about' or field == 'r' then
    return
  elseif kind == 's' then
    rule.check_session(id, packed, report)
  elseif kind == 'c' then
    seen[#seen + 1] = id
  elseif kind == 'l' and packed:byte() == 33 then
    local token, owner = packed:match('^!(%d+) (%d+) %d+ %d+ %d+$')
    token = tonumber(token)
    if not token or token > last or tokens[token] then
      report(id .. ': the grant ' .. packed .. ' is impossible')
    elseif not rule.get('s', owner) and root[PASSES] == 0 then
      report(id .. ': the session of ' .. packed .. ' is gone, and no pass collects it')
    end
    tokens[token or 0] = id
  elseif kind == 'l' then
    rule.check_lock(id, rule.get('l', id), report, seen, tokens)
  elseif kind == 't' and not rule.get('c', cmsgpack.unpack(packed)) then
    report('token ' .. id .. ': its claim is gone')
  elseif kind == 'a' then
    local session = rule.get('s', id:match('^(%d+):'))
    local number = tonumber(id:match(':(%d+)$'))
    if not session or number < session[LOWEST] or number > session[HIGHEST] then
      report('request ' .. id .. ': its outcome is kept although the request cannot be repeated')
    end
  elseif kind == 'e' then
    local lock = rule.get('l', id:sub(2))
    if not lock or lock[PAST] <= id:byte() - 97 then
      report(id:sub(2) .. ': an ended grant is kept, but not counted')
    end
  elseif not ('slctae'):find(kind, 1, true) then
    report(field .. ': the field is unknown')
  end
end

function rule.check(keys)
  local found, seen, tokens = {}, {}, {}
  local function report(what)
    found[#found + 1] = #found < 100 and what or nil
  end
  rule.begin(keys)
  local fields = redis.call('HLEN', hash)
  if fields == 0 then
    return redis.call('ZCARD', due) == 0 and {} or { 'there are times of a namespace that does not exist' }
  elseif fields > MOST_FIELDS then
    return { 'it has ' .. fields .. ' fields, too many for one call' }
  end
  local token = redis.call('HGET', hash, 'token')
  last = token and tonumber(token:match('^w?(%d+)$'))
  if not rule.namespace() or not last then
    return { 'the namespace itself or its last token is gone' }
  end
  local all = redis.call('HGETALL', hash)
  for i = 1, #all, 2 do
    rule.check_field(all[i], all[i + 1], report, seen, tokens)
  end
  for _, id in ipairs(seen) do
    rule.check_claim(id, rule.get('c', id), report, seen)
  end
  for _, member in ipairs(redis.call('ZRANGE', due, 0, -1)) do
    local kind, what = member:sub(1, 1), rule.get(member:sub(1, 1), member:sub(2))
    if kind ~= 'l' and (not what or (kind == 'c' and what[STATE] ~= WITHHELD)) then
      report(member .. ' is due, but does not exist')
    end
  end
  return found
end
