-- Functions for redis-cli and for languages without a client. The key is that of the namespace, by default
-- palisade:{palisade}:locks. Each acquire opens a session, which ends after its TTL unless it is renewed.

-- Returns the server's run id; '' if this user cannot read it.
local function run_id()
  local is_allowed, info = pcall(redis.call, 'INFO', 'server')
  return is_allowed and type(info) == 'string' and info:match('run_id:(%w+)') or ''
end

local function call(keys, what, ...)
  return rule.perform({ keys[1], keys[1] .. ':due' }, { what, '', 0, 'no-client', ... }, nil, run_id())
end

-- Returns what is wrong with the keys or the number of arguments; nil if nothing is.
local function check(keys, args, least)
  if #keys ~= 1 or not keys[1]:find('^palisade:{[%w_.-]+}:locks$') then
    return 'one key is needed, that of the namespace: palisade:{palisade}:locks'
  elseif #args < least then
    return 'too few arguments'
  end
end

-- Returns whether a text is UTF-8. Replaces each valid multi-byte character by one ASCII letter; then no byte above 127 may be
-- left.
local function is_text(text)
  local continuation = '[\128-\191]'
  for _, character in ipairs({
    '\240[\144-\191]' .. continuation .. continuation,
    '[\241-\243]' .. continuation .. continuation .. continuation,
    '\244[\128-\143]' .. continuation .. continuation,
    '\224[\160-\191]' .. continuation,
    '\237[\128-\159]' .. continuation,
    '[\225-\236\238\239]' .. continuation .. continuation,
    '[\194-\223]' .. continuation,
  }) do
    text = text:gsub(character, 'x')
  end
  return not text:find('[\128-\255]')
end

-- Control characters, line breaks and direction marks, which the library refuses as well.
local REFUSED = {
  '%c', '%z', '\194[\128-\159]', '\226\128[\142\143\168-\174]', '\226\129[\166-\169]', '\216\156',
}

local function check_name(name)
  local is_good = name ~= '' and #name <= 512 and name:sub(1, 1) ~= '$' and is_text(name)
  for _, refused in ipairs(REFUSED) do
    is_good = is_good and not name:find(refused)
  end
  if not is_good then
    return 'a name has 1 to 512 bytes of UTF-8, no control characters or marks of direction, and does not begin with $'
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
  elseif #label > 256 or not is_text(label) then
    return bad('a label has at most 256 bytes of UTF-8')
  end
  local session = rule.text(call(keys, 'open', ttl, label, run_id())[2])
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

-- FCALL palisade_release 1 palisade:{palisade}:locks NAME TOKEN SESSION: 1, or 0 if this token does not hold it.
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
-- left in milliseconds), waiters (session, label, permits), value, the last grants that ended; or nil.
redis.register_function('palisade_show', function(keys, args)
  local what = check(keys, args, 1)
  if what then
    return bad(what)
  end
  return call(keys, 'inspect', args[1])[2][1] or false
end)

-- FCALL palisade_check 1 palisade:{palisade}:locks: the errors in the stored data, one text each.
redis.register_function('palisade_check', function(keys, args)
  local what = check(keys, args, 0)
  if what then
    return bad(what)
  end
  return rule.check({ keys[1], keys[1] .. ':due' })
end)
