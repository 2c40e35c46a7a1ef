-- Removes the key if it has this value. A key of another type belongs to another program.
if redis.pcall('GET', KEYS[1]) == ARGV[1] then
  return redis.call('DEL', KEYS[1])
end
return 0
