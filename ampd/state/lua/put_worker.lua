-- KEYS load, changes, window, queue   ARGV worker, packed row, epoch, window_s
local worker, row, epoch, window_s = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local at = now()
local old = redis.call('HGET', KEYS[1], worker)
local stats = old and read_stats(KEYS[1], worker)
redis.call('HSETNX', KEYS[1], 'gen', whole(at * 1e6))
redis.call('HSET', KEYS[1], worker, row)
if not stats or cmsgpack.unpack(old)[4] ~= epoch then
  redis.call('DEL', KEYS[3], KEYS[4])
  write_stats(KEYS[1], KEYS[2], worker, {at, 0, 0, 0, 0, -1, -1})
  return
end
stats[AT] = at
stats[PROMISED_BEFORE] = stats[PROMISED]
stats[PROMISED] = 0
if stats[TTFT_S] >= 0 or stats[ITL_S] >= 0 then
  fold_window(stats, read_window(KEYS[3], at, window_s))
end
write_stats(KEYS[1], KEYS[2], worker, stats)
