#!lua name=palisade
-- Seals for Redis, 7.0 or newer: https://redis.io/docs/latest/develop/programmability/functions-intro
--
-- The mark is a key in the same database as the data, changed only together with them, in one step. In this order it holds:
--   token    the newest token that has sealed the data; nothing older is accepted
--   seq      the last write under that token
--   author   the handle that gave it that number
--   outcome  its outcome (MessagePack); empty if the number was used up without a write
-- The first three are doubles of eight bytes, the lowest first. It is packed because every write reads and writes it.
--
-- Its key is palisade:{NAME}. In a cluster it has to be in one hash slot with the data: the key NAME is, and so is every key
-- with {NAME} in it.

local LARGEST = 9007199254740991 -- 2^53 - 1

-- The outcome of most writes. Packed at the first use, because nothing can be packed while functions are loaded.
local OK

-- The allowed commands, and how many keys each has. Their keys come first, and no argument names another key, so none of
-- them reaches a mark. ANY: one or more keys, and nothing else.
local ANY = 0

local READS = {
  BITCOUNT = 1, EXISTS = ANY, GET = 1, GETBIT = 1, GETRANGE = 1, HEXISTS = 1, HGET = 1, HGETALL = 1, HKEYS = 1, HLEN = 1,
  HMGET = 1, HSTRLEN = 1, HVALS = 1, LINDEX = 1, LLEN = 1, LPOS = 1, LRANGE = 1, MGET = ANY, PTTL = 1, SCARD = 1,
  SDIFF = ANY, SINTER = ANY, SISMEMBER = 1, SMEMBERS = 1, SMISMEMBER = 1, STRLEN = 1, SUNION = ANY, TTL = 1, TYPE = 1,
  XLEN = 1, XRANGE = 1, XREVRANGE = 1, ZCARD = 1, ZCOUNT = 1, ZMSCORE = 1, ZRANGE = 1, ZRANK = 1, ZREVRANK = 1, ZSCORE = 1,
}

local WRITES = {
  APPEND = 1, BITFIELD = 1, COPY = 2, DECR = 1, DECRBY = 1, DEL = ANY, EXPIRE = 1, EXPIREAT = 1, GEOADD = 1,
  GEOSEARCHSTORE = 2, GETDEL = 1, GETEX = 1, GETSET = 1, HDEL = 1, HEXPIRE = 1, HEXPIREAT = 1, HGETDEL = 1, HGETEX = 1,
  HINCRBY = 1, HINCRBYFLOAT = 1, HMSET = 1, HPERSIST = 1, HPEXPIRE = 1, HPEXPIREAT = 1, HSET = 1, HSETEX = 1, HSETNX = 1,
  INCR = 1, INCRBY = 1, INCRBYFLOAT = 1, LINSERT = 1, LMOVE = 2, LPOP = 1, LPUSH = 1, LPUSHX = 1, LREM = 1, LSET = 1,
  LTRIM = 1, PERSIST = 1, PEXPIRE = 1, PEXPIREAT = 1, PFADD = 1, PFMERGE = ANY, PSETEX = 1, RENAME = 2, RENAMENX = 2,
  RESTORE = 1, RPOP = 1, RPOPLPUSH = 2, RPUSH = 1, RPUSHX = 1, SADD = 1, SDIFFSTORE = ANY, SET = 1, SETBIT = 1, SETEX = 1,
  SETNX = 1, SETRANGE = 1, SINTERSTORE = ANY, SMOVE = 2, SPOP = 1, SREM = 1, SUNIONSTORE = ANY, UNLINK = ANY, XACK = 1,
  XADD = 1, XAUTOCLAIM = 1, XCLAIM = 1, XDEL = 1, XSETID = 1, XTRIM = 1, ZADD = 1, ZINCRBY = 1, ZPOPMAX = 1, ZPOPMIN = 1,
  ZRANGESTORE = 2, ZREM = 1, ZREMRANGEBYLEX = 1, ZREMRANGEBYRANK = 1, ZREMRANGEBYSCORE = 1,
}

local function refuse(code, text)
  return redis.error_reply(code .. ' ' .. text)
end

-- Parses a whole number up to 2^53 - 1; returns nil for other text.
local function number(text)
  if not text or text == '' or #text > 16 or string.find(text, '%D') then return nil end
  local value = tonumber(text)
  return value <= LARGEST and value or nil
end

local function bad_number(what)
  return refuse('MISUSE', 'the ' .. what .. ' must be a whole number below 2^53')
end

-- Returns the token, number and author of a mark, and its bytes; nothing if there is no mark.
local function read_mark(key)
  local mark = redis.call('GET', key)
  if not mark then return nil end
  local token, seq, author = struct.unpack('<ddd', mark)
  return token, seq, author, mark
end

local function write_mark(key, token, seq, author, outcome)
  return redis.call('SET', key, struct.pack('<ddd', token, seq, author) .. outcome)
end

-- The text for a token below the mark: the causes, and what to do. Clients parse the number in front.
local function overtaken(seen)
  return string.format('%.0f is the token that has sealed it. Either a newer holder has the lock: acquire it again. ' ..
    'Or the engine that gave this token counts lower: palisade tokens raise --above %.0f', seen, seen)
end

-- Refuses a token that is not the one in the mark.
local function refused(token, seen)
  if seen and seen > token then
    return refuse('STALE', overtaken(seen))
  end
  return refuse('NOTSEALED', 'this token has not sealed it: seal it first (if it was sealed, the mark is lost)')
end

-- Runs a command on the keys behind the mark. Its keys come first, then its arguments.
local function run(keys, args, first)
  if #keys == 2 and #args == first + 1 then return redis.pcall(args[first], keys[2], args[first + 1]) end
  local command = { args[first] }
  for i = 2, #keys do command[i] = keys[i] end
  for i = first + 1, #args do command[#command + 1] = args[i] end
  return redis.pcall(unpack(command))
end

-- Refuses a first key that is not a mark's: a key of data would be read as one, and overwritten.
local function check_mark(keys)
  if not keys[1] or not string.find(keys[1], '^palisade:{[^{}]+}$') then
    return refuse('MISUSE', 'the first key must be that of the mark, palisade:{NAME}')
  end
end

-- Refuses a command that is not among these, or has other keys than it can have, or keys of ours.
local function check_command(keys, args, first, commands)
  if not args[first] then return refuse('MISUSE', 'the command is missing') end
  local count = commands[string.upper(args[first])]
  if not count then
    return refuse('MISUSE', 'this command cannot be run here: only those whose keys come first, and are all of its keys')
  end
  if #keys < 2 then return refuse('MISUSE', 'the keys are missing: the mark first, then those of the command') end
  if count == ANY and #args > first then
    return refuse('MISUSE', 'this command has keys only: all of them come behind the mark')
  end
  if count ~= ANY and #keys ~= count + 1 then
    return refuse('MISUSE', string.format('this command has %d key(s), behind the mark', count))
  end
  for i = 2, #keys do
    if string.sub(keys[i], 1, 9) == 'palisade:' then
      return refuse('MISUSE', 'the mark is not for commands, nor is any other key that begins with palisade:')
    end
  end
end

-- FCALL palisade_seal 1 MARK TOKEN                       raises the mark; returns the number of the last write
-- FCALL palisade_seal 2 MARK KEY TOKEN                   the same, but refuses if the key exists without a mark
local function seal(keys, args)
  local wrong = check_mark(keys)
  if wrong then return wrong end
  local token = number(args[1])
  if not token or token == 0 then return bad_number('token (from 1 on)') end
  local seen, seq = read_mark(keys[1])
  if seen == token then return seq end
  if seen and seen > token then
    return refuse('SUPERSEDED', overtaken(seen))
  end
  if not seen then
    for i = 2, #keys do
      if redis.call('EXISTS', keys[i]) == 1 then
        return refuse('MARKLOST', 'there are data but no mark: it was lost, or the data were never fenced. ' ..
          'Raise the engine\'s tokens above all that were used (palisade tokens raise), then seal without the key')
      end
    end
  end
  write_mark(keys[1], token, 0, 0, '')
  return 0
end

-- FCALL palisade_read N MARK KEY... TOKEN COMMAND [ARGUMENT...]
local function read(keys, args)
  local token = number(args[1])
  if not token then return bad_number('token') end
  local wrong = check_mark(keys) or check_command(keys, args, 2, READS)
  if wrong then return wrong end
  local seen = read_mark(keys[1])
  if seen ~= token then return refused(token, seen) end
  return run(keys, args, 2)
end

-- Returns nothing if a write is the next one, its outcome if it is a repeat of the last one, otherwise nil and the refusal.
local function admit(key, token, seq, author)
  if not token then return nil, bad_number('token') end
  if not seq then return nil, bad_number('number of the write') end
  if not author then return nil, bad_number('author') end
  local seen, last, by, bytes = read_mark(key)
  if seen ~= token then return nil, refused(token, seen) end
  if seq == last + 1 then return nil end
  if seq == last and seq > 0 and author == by then return string.sub(bytes, 25) end
  return nil, refuse('GAP', string.format('%.0f is the number of the next write', last + 1))
end

-- FCALL palisade_write N MARK KEY... TOKEN SEQ AUTHOR COMMAND [ARGUMENT...]
local function write(keys, args)
  local wrong = check_mark(keys) or check_command(keys, args, 4, WRITES)
  if wrong then return wrong end
  local mark, token, seq, author = keys[1], number(args[1]), number(args[2]), number(args[3])
  local before, why_not = admit(mark, token, seq, author)
  if why_not then return why_not end
  if before == '' then return refuse('SETTLED', 'nothing was written under this number, and never will be') end
  if before then return cmsgpack.unpack(before) end
  -- Redis does not roll back: writing the mark must not fail after the command has run.
  if not redis.acl_check_cmd('SET', mark, '0') then
    return refuse('NOPERM', 'this user may not write the mark: it needs SET on its key')
  end
  local outcome = run(keys, args, 4)
  local is_table = type(outcome) == 'table'
  if is_table and outcome.err then return refuse('REJECTED', outcome.err) end
  if is_table and outcome.ok == 'OK' then
    OK = OK or cmsgpack.pack(outcome)
    write_mark(mark, token, seq, author, OK)
  else
    write_mark(mark, token, seq, author, cmsgpack.pack(outcome))
  end
  return outcome
end

-- FCALL palisade_settle 1 MARK TOKEN SEQ AUTHOR          the outcome of a write; empty: it was not applied, and never will be
local function settle(keys, args)
  local wrong = check_mark(keys)
  if wrong then return wrong end
  local token, seq, author = number(args[1]), number(args[2]), number(args[3])
  local before, why_not = admit(keys[1], token, seq, author)
  if why_not then return why_not end
  if before == '' then return {} end
  if before then return { cmsgpack.unpack(before) } end
  write_mark(keys[1], token, seq, author, '')
  return {}
end

-- FCALL palisade_mark 1 MARK                             the token and the number of the last write, or nothing
local function mark(keys)
  local wrong = check_mark(keys)
  if wrong then return wrong end
  local token, seq = read_mark(keys[1])
  return token and { token, seq } or {}
end

-- FCALL palisade_version 0                               changes when the functions do
local function version()
  return 3
end

-- A replica may not have the newest mark: nothing here runs on one, though reads could.
redis.register_function { function_name = 'palisade_seal', callback = seal }
redis.register_function { function_name = 'palisade_read', callback = read, flags = { 'allow-oom' } }
redis.register_function { function_name = 'palisade_write', callback = write }
redis.register_function { function_name = 'palisade_settle', callback = settle }
redis.register_function { function_name = 'palisade_mark', callback = mark, flags = { 'allow-oom' } }
redis.register_function { function_name = 'palisade_version', callback = version, flags = { 'no-writes' } }
