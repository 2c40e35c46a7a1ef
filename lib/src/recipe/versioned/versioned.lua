-- A value is a hash with the fields write and value.
--
-- KEYS[1]: the value. ARGV: the id of the write, the value, the id of the write that it replaces ('' to create the value).
local write = redis.call('HGET', KEYS[1], 'write')
if (write or '') ~= ARGV[3] then
    return 0
end
redis.call('HSET', KEYS[1], 'write', ARGV[1], 'value', ARGV[2])
return 1
