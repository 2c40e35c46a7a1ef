if ARGV[1] ~= 'several' then
  return rule.perform(KEYS, ARGV, read)
end
-- Requests that the fast path has not answered run one after the other, each as a separate call: if one fails, the others are
-- not affected.
for i = 1, (#ARGV - 6) / 3 do
  local what, lock, number = ARGV[3 * i + 4], ARGV[3 * i + 5], ARGV[3 * i + 6]
  local args = { 'release', ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6], lock, number, 'once' }
  if what ~= 'once' then
    args = { 'acquire', ARGV[2], ARGV[3], ARGV[4], ARGV[5], number, what .. '.' .. ARGV[6], 'queue', '', '', lock, ALL, ALL }
  end
  if not answers[i] then
    local is_done, answer = pcall(rule.perform, KEYS, args)
    answers[i] = is_done and answer or redis.error_reply(type(answer) == 'table' and answer.err or tostring(answer))
  end
end
return answers
