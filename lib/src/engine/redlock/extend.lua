-- Extends the key if it has this value. A key of another type belongs to another program: an error would end the pipeline.
if redis.pcall('GET', KEYS[1]) == ARGV[1] then
  return redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
return 0
