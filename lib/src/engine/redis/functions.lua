-- For people, and for languages without a client. The key is that of the namespace, palisade:{palisade}:locks unless one was
-- chosen. A lock that is taken here has a session of its own, which lives for its TTL unless it is renewed.

local function call(keys, ...)
  return rule.carry_out({ keys[1], keys[1] .. ':due' }, { select(1, ...), '', 0, 'nobody', select(2, ...) })
end

local function check(keys, args, least)
  if #keys ~= 1 then
    return 'one key is needed, that of the namespace: palisade:{palisade}:locks'
  elseif #args < least then
    return 'too few arguments'
  end
end

local function check_name(name)
  if name == '' or #name > 512 or name:find('%c') or name:sub(1, 1) == '$' then
    return 'a name has 1 to 512 bytes, no control characters, and does not begin with $'
  end
end

local function bad(what)
  return redis.error_reply('ERR palisade: ' .. what)
end

-- FCALL palisade_acquire 1 palisade:{palisade}:locks NAME TTL_MS [LABEL]: token and session, or nil if it is held.
redis.register_function('palisade_acquire', function(keys, args)
  local ttl, label = tonumber(args[2]), args[3] or 'redis-cli'
  local what = check(keys, args, 2) or check_name(args[1])
  if what then
    return bad(what)
  elseif not ttl or ttl < 100 or ttl > 3888000000 or ttl ~= math.floor(ttl) then
    return bad('the TTL is a number of milliseconds, from 100 to 45 days')
  elseif #label > 256 then
    return bad('a label has at most 256 bytes')
  end
  local session = rule.text(call(keys, 'open', ttl, label)[2])
  local answer = call(keys, 'acquire', session, '1', 'try.1', 'queue', '', '', args[1], ALL, ALL)
  if answer[1] == 'granted' then
    return { answer[2], session }
  end
  call(keys, 'close', session)
  if answer[1] == 'refused' then
    return bad(args[1] .. ' is in use as a semaphore')
  end
  return false
end)

-- FCALL palisade_renew 1 palisade:{palisade}:locks SESSION: 1, or 0 if it has ended.
redis.register_function('palisade_renew', function(keys, args)
  local what = check(keys, args, 1)
  if what then
    return bad(what)
  end
  return call(keys, 'alive', args[1])[1] == 'done' and 1 or 0
end)

-- FCALL palisade_release 1 palisade:{palisade}:locks NAME TOKEN SESSION: 1, or 0 if it was not held with this token any more.
redis.register_function('palisade_release', function(keys, args)
  local what = check(keys, args, 3)
  if what then
    return bad(what)
  end
  local token = tonumber(args[2])
  if not token then
    return bad('the token is a number')
  end
  if call(keys, 'release', args[3], 1, args[1], token)[1] ~= 'done' then
    return 0
  end
  call(keys, 'close', args[3])
  return 1
end)

-- FCALL palisade_show 1 palisade:{palisade}:locks NAME: name, permits, holders (token, permits, session, label, held for and
-- left in milliseconds), waiters (session, label, permits), value, what ended last; or nil.
redis.register_function('palisade_show', function(keys, args)
  local what = check(keys, args, 1)
  if what then
    return bad(what)
  end
  return call(keys, 'inspect', args[1])[2][1] or false
end)
