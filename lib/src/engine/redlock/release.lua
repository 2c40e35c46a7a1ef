-- Only its owner takes the key away. A key of another kind is not its own, and no error.
if redis.pcall('GET', KEYS[1]) == ARGV[1] then
  return redis.call('DEL', KEYS[1])
end
return 0
