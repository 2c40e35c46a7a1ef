-- The usual case on its own, without the cost of everything else: one exclusive lock that nobody holds or wants, and its
-- release while nobody wants it. It then has no claim, only a line in the lock's field: `!`, and token, session, request and
-- since when as MessagePack. Whatever is not usual goes on to the rules below, which turn that line into a claim (`inflate`).
do
  local what, hash = ARGV[1], KEYS[1]
  if what == 'acquire' and #ARGV == 13 and ARGV[12] == '4294967295' and ARGV[9] == '' and ARGV[10] == '' then
    local owner, field = ARGV[5], 'l' .. ARGV[11]
    local found = redis.call('HMGET', hash, field, 'r', 's' .. owner, 'n' .. owner)
    if not found[1] and found[2] and found[3] and ARGV[13] == '4294967295' then
      local root, session, time = cmsgpack.unpack(found[2]), cmsgpack.unpack(found[3]), redis.call('TIME')
      local now, request = time[1] * 1000 + math.floor(time[2] / 1000), tonumber(ARGV[6])
      if root[1] == ARGV[2] and root[2] >= tonumber(ARGV[3]) and root[2] < 9007199254740991 and root[5] <= now
        and session[2] > now and session[9] == 0 and session[7] < 100000
        and request >= session[8] and request >= tonumber(found[4] or 0)
      then
        root[2] = root[2] + 1
        local line = '!' .. cmsgpack.pack({ root[2], owner, request, now })
        redis.call('HSET', hash, field, line, 'r', cmsgpack.pack(root))
        return { 'granted', root[2] }
      end
    end
  elseif what == 'release' then
    local owner, field = ARGV[5], 'l' .. ARGV[7]
    local found = redis.call('HMGET', hash, field, 'r', 's' .. owner)
    if found[1] and found[2] and found[3] and found[1]:byte() == 33 then
      local line, root, session = cmsgpack.unpack(found[1]:sub(2)), cmsgpack.unpack(found[2]), cmsgpack.unpack(found[3])
      local time = redis.call('TIME')
      local now = time[1] * 1000 + math.floor(time[2] / 1000)
      if line[1] == tonumber(ARGV[8]) and line[2] == owner and root[1] == ARGV[2] and root[2] >= tonumber(ARGV[3])
        and root[5] <= now and session[2] > now
      then
        if ARGV[9] == 'once' then
          redis.call('HDEL', hash, field)
          return { 'done' }
        elseif line[3] < tonumber(ARGV[6]) then
          redis.call('HDEL', hash, field)
          redis.call('HSET', hash, 'n' .. owner, ARGV[6])
          return { 'done' }
        end
      end
    end
  end
end
