-- The uncontended fast path: acquires of an exclusive lock without holders and waiters, and their releases while there are
-- no waiters. Such a grant has no claim: its lock's field is an inline grant (see words.lua). All other requests continue in
-- rules.lua, which turns the inline grant into a claim (`inflate`). It also writes the fields that are read here: the last
-- token as digits, and the header of a session: the incarnation (16 characters), the time at which the session ends (13), and
-- the lowest request number that is certainly new (16).
-- The reply is the token, or 0 for a release.
local answers, read
if ARGV[1] == 'acquire' and #ARGV == 13 and ARGV[12] == '4294967295' and ARGV[13] == '4294967295' and ARGV[9] == ''
  and ARGV[10] == ''
then
  local owner, request, field = ARGV[5], ARGV[6], 'l' .. ARGV[11]
  read = redis.call('HMGET', KEYS[1], 'token', 's' .. owner, field)
  local last, session = tonumber(read[1]), read[2]
  if last and session and not read[3] and session:sub(1, 16) == ARGV[2] and last >= tonumber(ARGV[3])
    and last < 9007199254740991 and tonumber(request) >= tonumber(session:sub(30, 45))
  then
    local time = redis.call('TIME')
    if tonumber(session:sub(17, 29)) > time[1] * 1000 + time[2] / 1000 then
      local token = string.format('%d', last + 1)
      local inline = '!' .. token .. ' ' .. owner .. ' ' .. request .. ' ' .. time[1] .. ' ' .. time[2]
      redis.call('HSET', KEYS[1], field, inline, 'token', token)
      return last + 1
    end
  end
elseif ARGV[1] == 'release' and ARGV[9] == 'once' then
  local field, mine = 'l' .. ARGV[7], '!' .. ARGV[8] .. ' ' .. ARGV[5] .. ' '
  read = redis.call('HMGET', KEYS[1], 'token', 's' .. ARGV[5], field)
  local last, session, inline = tonumber(read[1]), read[2], read[3]
  if last and session and inline and inline:sub(1, #mine) == mine and session:sub(1, 16) == ARGV[2]
    and last >= tonumber(ARGV[3])
  then
    redis.call('HDEL', KEYS[1], field)
    return 0
  end
elseif ARGV[1] == 'several' then
  -- The same for many requests of one session: `wait`, `try` or `once`, lock, request or token. The client sent them at
  -- the same time, so any order is right. Requests that need rules.lua, and second requests for a lock, run last, in call.lua.
  local owner, get, set, gone = ARGV[5], { 'HMGET', KEYS[1], 'token', 's' .. ARGV[5] }, { 'HSET', KEYS[1] }, { 'HDEL', KEYS[1] }
  for i = 8, #ARGV, 3 do
    get[#get + 1] = 'l' .. ARGV[i]
  end
  local found = redis.call(unpack(get))
  local last, session, token, time, now = tonumber(found[1]), found[2], nil, nil, nil
  answers = {}
  if last and session and session:sub(1, 16) == ARGV[2] and last >= tonumber(ARGV[3]) then
    local ends, first_new, seen, all_done = tonumber(session:sub(17, 29)), tonumber(session:sub(30, 45)), {}, true
    for i = 1, #get - 4 do
      local field, inline, what, number, answer = get[i + 4], found[i + 2], ARGV[3 * i + 4], ARGV[3 * i + 6], false
      if seen[field] then
        answer = false
      elseif what == 'once' then
        local mine = '!' .. number .. ' ' .. owner .. ' '
        if inline and inline:sub(1, #mine) == mine then
          gone[#gone + 1], answer = field, 0
        end
      elseif not inline and tonumber(number) >= first_new and last < 9007199254740991 then
        time = time or redis.call('TIME')
        now = now or time[1] * 1000 + time[2] / 1000
        if ends > now then
          last = last + 1
          token, answer = string.format('%d', last), last
          set[#set + 1] = field
          set[#set + 1] = '!' .. token .. ' ' .. owner .. ' ' .. number .. ' ' .. time[1] .. ' ' .. time[2]
        end
      end
      seen[field], answers[i], all_done = true, answer, all_done and answer
    end
    -- Releases first: a full Redis accepts HDEL, and once a script has written, it does not refuse HSET.
    if #gone > 2 then
      redis.call(unpack(gone))
    end
    if token then
      set[#set + 1] = 'token'
      set[#set + 1] = token
      redis.call(unpack(set))
    end
    if all_done then
      return answers
    end
  end
end
