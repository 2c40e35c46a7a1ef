-- The uncontended fast path: acquires of an exclusive lock without holders and waiters, and their releases while there are
-- no waiters. Such a grant has no claim, only a line in its lock's field. All other requests continue with the rules below,
-- which turn that line into a claim (`inflate`). The rules write the fields that are read here: the last token as digits, and
-- in front of a session its incarnation, the time at which it ends, and its first new request number.
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
      local line = '!' .. token .. ' ' .. owner .. ' ' .. request .. ' ' .. time[1] .. ' ' .. time[2]
      redis.call('HSET', KEYS[1], field, line, 'token', token)
      return last + 1
    end
  end
elseif ARGV[1] == 'release' and ARGV[9] == 'once' then
  local field, mine = 'l' .. ARGV[7], '!' .. ARGV[8] .. ' ' .. ARGV[5] .. ' '
  read = redis.call('HMGET', KEYS[1], 'token', 's' .. ARGV[5], field)
  local last, session, line = tonumber(read[1]), read[2], read[3]
  if last and session and line and line:sub(1, #mine) == mine and session:sub(1, 16) == ARGV[2]
    and last >= tonumber(ARGV[3])
  then
    redis.call('HDEL', KEYS[1], field)
    return 0
  end
elseif ARGV[1] == 'several' then
  -- The same for many requests of one session: `wait`, `try` or `once`, lock, request or token. They were sent at the same
  -- time, so that their order is free. Requests that need the rules, and later requests for the same lock, come last.
  local owner, get, set, gone = ARGV[5], { 'HMGET', KEYS[1], 'token', 's' .. ARGV[5] }, { 'HSET', KEYS[1] }, { 'HDEL', KEYS[1] }
  for i = 8, #ARGV, 3 do
    get[#get + 1] = 'l' .. ARGV[i]
  end
  local found = redis.call(unpack(get))
  local last, session, token, time, now = tonumber(found[1]), found[2], nil, nil, nil
  answers = {}
  if last and session and session:sub(1, 16) == ARGV[2] and last >= tonumber(ARGV[3]) then
    local ends, new, before, all = tonumber(session:sub(17, 29)), tonumber(session:sub(30, 45)), {}, true
    for i = 1, #get - 4 do
      local field, line, what, number, answer = get[i + 4], found[i + 2], ARGV[3 * i + 4], ARGV[3 * i + 6], false
      if before[field] then
        answer = false
      elseif what == 'once' then
        local mine = '!' .. number .. ' ' .. owner .. ' '
        if line and line:sub(1, #mine) == mine then
          gone[#gone + 1], answer = field, 0
        end
      elseif not line and tonumber(number) >= new and last < 9007199254740991 then
        time = time or redis.call('TIME')
        now = now or time[1] * 1000 + time[2] / 1000
        if ends > now then
          last = last + 1
          token, answer = string.format('%d', last), last
          set[#set + 1] = field
          set[#set + 1] = '!' .. token .. ' ' .. owner .. ' ' .. number .. ' ' .. time[1] .. ' ' .. time[2]
        end
      end
      before[field], answers[i], all = true, answer, all and answer
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
    if all then
      return answers
    end
  end
end
