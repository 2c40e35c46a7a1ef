-- Its owner has the key for another TTL. A key of another kind is not its own: that is no error, which would end the whole call.
if redis.pcall('GET', KEYS[1]) == ARGV[1] then
  return redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
return 0
