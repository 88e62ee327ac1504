-- KEYS load, window, queue   ARGV worker, seconds of silence that it takes ('' = remove in any case)
if ARGV[2] ~= '' then
  local stats = read_stats(KEYS[1], ARGV[1])
  if stats and now() - stats[AT] <= tonumber(ARGV[2]) then return 0 end
end
redis.call('DEL', KEYS[2], KEYS[3])
return redis.call('HDEL', KEYS[1], ARGV[1], ARGV[1] .. ':s')
