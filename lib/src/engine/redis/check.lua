-- Checks that the stored data are consistent. Changes nothing.

-- The most fields that one call checks, since it blocks Redis.
local CHECKED = 500000

-- Walks a list of a lock and reports errors in it. `each` receives every claim of the list.
function rule.check_list(name, lock, list, wrong, each)
  local id, before, count = lock[list], false, 0
  while id do
    local claim = rule.get('c', id)
    local p = claim and rule.place_at(claim, name)
    if not p then
      return wrong(name .. ': ' .. id .. ' is in its list, but is not a claim of it')
    elseif before and claim[PLACES][p + 2] ~= before then
      return wrong(name .. ': ' .. id .. ' has a wrong link to the claim before it')
    end
    count = count + 1
    if count > lock[list + 2] then
      return wrong(name .. ': a list is longer than ' .. lock[list + 2])
    end
    each(id, claim, claim[PLACES][p + 1])
    before, id = id, claim[PLACES][p + 3]
  end
  if count ~= lock[list + 2] or (lock[list + 1] or false) ~= before then
    wrong(name .. ': a list has ' .. count .. ' claims, but is recorded with ' .. lock[list + 2])
  end
end

function rule.check_lock(name, lock, wrong, seen, tokens)
  local taken, rank = 0, 0
  rule.check_list(name, lock, HOLDERS, wrong, function(id, claim, need)
    taken, seen[id .. ' ' .. name] = taken + need, true
    if claim[STATE] == WAITS then
      wrong(name .. ': ' .. id .. ' holds it and waits')
    elseif claim[RANK] > last then
      wrong(name .. ': token ' .. rule.text(claim[RANK]) .. ' is above the last one')
    elseif tokens[claim[RANK]] and tokens[claim[RANK]] ~= id then
      wrong(name .. ': token ' .. rule.text(claim[RANK]) .. ' is held twice')
    end
    tokens[claim[RANK]] = id
  end)
  rule.check_list(name, lock, QUEUE, wrong, function(id, claim)
    seen[id .. ' ' .. name] = true
    if claim[STATE] ~= WAITS then
      wrong(name .. ': ' .. id .. ' is in its queue and does not wait')
    elseif claim[RANK] <= rank then
      wrong(name .. ': ' .. id .. ' has a lower rank than the claim before it')
    end
    rank = claim[RANK]
  end)
  if taken ~= lock[TAKEN] then
    wrong(name .. ': ' .. taken .. ' permits are taken, but ' .. lock[TAKEN] .. ' are recorded')
  elseif lock[LIMIT] == ALL and lock[HOLDERS + 2] > 1 and taken >= ALL then
    wrong(name .. ': it has an exclusive holder and others')
  elseif lock[HOLDERS + 2] == 0 and lock[QUEUE + 2] == 0 then
    wrong(name .. ': it has neither a holder nor a waiter')
  end
  local head = lock[QUEUE] and rule.get('c', lock[QUEUE])
  local session = head and rule.get('s', head[OWNER])
  if session and not session[HOW] and rule.is_its_turn(lock[QUEUE], head) and last < LAST_TOKEN
    and not redis.call('ZSCORE', due, 'l' .. name)
  then
    wrong(name .. ': ' .. lock[QUEUE] .. ' waits although it is its turn')
  end
end

function rule.check_session(number, packed, wrong)
  local session, before, locks = rule.get('s', number), false, 0
  local id = session[HEAD]
  while id do
    local claim = rule.get('c', id)
    if not claim or claim[OWNER] ~= number or claim[PREV] ~= before or claim[STATE] == WITHHELD then
      return wrong('session ' .. number .. ': ' .. id .. ' is in its list, but does not match')
    end
    locks = locks + #claim[PLACES] / 4
    before, id = id, claim[NEXT]
  end
  if session[TAIL] ~= before or session[LOCKS] ~= locks then
    wrong('session ' .. number .. ': it has ' .. locks .. ' locks, but ' .. session[LOCKS] .. ' are recorded')
  elseif rule.pack('s' .. number, session) ~= packed then
    wrong('session ' .. number .. ': its header does not match its record')
  elseif not redis.call('ZSCORE', due, 's' .. number) then
    wrong('session ' .. number .. ': it has no time at which it ends')
  end
end

function rule.check_claim(id, claim, wrong, seen)
  for _, name in ipairs(rule.names(claim)) do
    if not seen[id .. ' ' .. name] then
      wrong(id .. ': it is a claim of ' .. name .. ', which does not list it')
    end
  end
  if claim[STATE] ~= WITHHELD and not rule.get('s', claim[OWNER]) then
    wrong(id .. ': its session is gone')
  elseif claim[STATE] == WITHHELD and not redis.call('ZSCORE', due, 'c' .. id) then
    wrong(id .. ': it is withheld without a time at which that ends')
  elseif claim[STATE] ~= WAITS and rule.is_shared(claim) and rule.get('t', rule.text(claim[RANK])) ~= id then
    wrong(id .. ': its token does not lead to it')
  end
end

-- Checks one field, and collects what the checks of other fields need.
function rule.check_field(field, packed, wrong, seen, tokens)
  local kind, id = field:sub(1, 1), field:sub(2)
  if field == 'token' or field == 'about' or field == 'r' then
    return
  elseif kind == 's' then
    rule.check_session(id, packed, wrong)
  elseif kind == 'c' then
    seen[#seen + 1] = id
  elseif kind == 'l' and packed:byte() == 33 then
    local token, owner = packed:match('^!(%d+) (%d+) %d+ %d+ %d+$')
    token = tonumber(token)
    if not token or token > last or tokens[token] then
      wrong(id .. ': the grant ' .. packed .. ' is impossible')
    elseif not rule.get('s', owner) and root[PASSES] == 0 then
      wrong(id .. ': the session of ' .. packed .. ' is gone, and no pass collects it')
    end
    tokens[token or 0] = id
  elseif kind == 'l' then
    rule.check_lock(id, rule.get('l', id), wrong, seen, tokens)
  elseif kind == 't' and not rule.get('c', cmsgpack.unpack(packed)) then
    wrong('token ' .. id .. ': its claim is gone')
  elseif kind == 'a' then
    local session = rule.get('s', id:match('^(%d+):'))
    local number = tonumber(id:match(':(%d+)$'))
    if not session or number < session[LOW] or number > session[TOP] then
      wrong('request ' .. id .. ': its outcome is kept although the request cannot be repeated')
    end
  elseif kind == 'e' then
    local lock = rule.get('l', id:sub(2))
    if not lock or lock[PAST] <= id:byte() - 97 then
      wrong(id:sub(2) .. ': an ended grant is kept, but not counted')
    end
  elseif not ('slctae'):find(kind, 1, true) then
    wrong(field .. ': the field is unknown')
  end
end

function rule.check(keys)
  local found, seen, tokens = {}, {}, {}
  local function wrong(what)
    found[#found + 1] = #found < 100 and what or nil
  end
  rule.begin(keys)
  local fields = redis.call('HLEN', hash)
  if fields == 0 then
    return redis.call('ZCARD', due) == 0 and {} or { 'there are times of a namespace that does not exist' }
  elseif fields > CHECKED then
    return { 'it has ' .. fields .. ' fields, too many for one call' }
  end
  local token = redis.call('HGET', hash, 'token')
  last = token and tonumber(token:match('^w?(%d+)$'))
  if not rule.namespace() or not last then
    return { 'the namespace itself or its last token is gone' }
  end
  local all = redis.call('HGETALL', hash)
  for i = 1, #all, 2 do
    rule.check_field(all[i], all[i + 1], wrong, seen, tokens)
  end
  for _, id in ipairs(seen) do
    rule.check_claim(id, rule.get('c', id), wrong, seen)
  end
  for _, member in ipairs(redis.call('ZRANGE', due, 0, -1)) do
    local kind, what = member:sub(1, 1), rule.get(member:sub(1, 1), member:sub(2))
    if kind ~= 'l' and (not what or (kind == 'c' and what[STATE] ~= WITHHELD)) then
      wrong(member .. ' is due, but does not exist')
    end
  end
  return found
end
