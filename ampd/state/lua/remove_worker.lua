-- KEYS load, changes, window, queue   ARGV worker, seconds of silence that it takes ('' = remove in any case)
-- Returns 1 to the one caller that removed it.
if ARGV[2] ~= '' then
  local stats = read_stats(KEYS[1], ARGV[1])
  if stats and now() - stats[AT] <= tonumber(ARGV[2]) then return 0 end
end
redis.call('DEL', KEYS[3], KEYS[4])
if redis.call('HDEL', KEYS[1], ARGV[1], ARGV[1] .. ':s') == 0 then return 0 end
redis.call('ZREM', KEYS[2], ARGV[1])
if redis.call('ZCARD', KEYS[2]) == 0 then
  redis.call('DEL', KEYS[1])
else
  redis.call('HSET', KEYS[1], 'gen', whole(now() * 1e6))
end
return 1
