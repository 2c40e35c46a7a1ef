-- The record of a key is a hash with the fields token, request and outcome. Redis removes it when its time has passed.
-- The rules are those of record.rs. Tokens are below 2^53, so Lua's numbers are exact.
--
-- KEYS[1]: the record. ARGV: 'find'; or 'begin', token, request ('' for none), milliseconds to keep; or 'finish', token,
-- outcome, milliseconds to keep.
local record = redis.call('HMGET', KEYS[1], 'token', 'request', 'outcome')
local token, request, outcome = tonumber(record[1]), record[2], record[3]
if ARGV[1] == 'find' then
    return { record[1], request, outcome }
end
local own = tonumber(ARGV[2])
if ARGV[1] == 'finish' then
    if token ~= own then
        return { 'refused', record[1] }
    end
    redis.call('HSET', KEYS[1], 'outcome', ARGV[3])
    redis.call('PEXPIRE', KEYS[1], ARGV[4])
    return { 'kept' }
end
if request and request ~= '' and ARGV[3] ~= '' and request ~= ARGV[3] then
    return { 'other' }
end
if outcome then
    return { 'done', outcome }
end
if token and token > own then
    return { 'superseded', record[1] }
end
redis.call('HSET', KEYS[1], 'token', ARGV[2])
if not request or request == '' then
    redis.call('HSET', KEYS[1], 'request', ARGV[3])
end
redis.call('PEXPIRE', KEYS[1], ARGV[4])
if token and token < own then
    return { 'run', record[1] }
end
return { 'run' }
