-- KEYS load, changes, queue   ARGV worker, task, postponed task...
local COST_S, POSTPONED = 6, 9
local raw = redis.call('HGET', KEYS[3], ARGV[2])
if not raw then return end
redis.call('HDEL', KEYS[3], ARGV[2])
local stats = read_stats(KEYS[1], ARGV[1])
if stats then
  stats[TASKS] = redis.call('HLEN', KEYS[3])
  stats[QUEUED_S] = stats[TASKS] > 0 and math.max(0, stats[QUEUED_S] - cmsgpack.unpack(raw)[2][COST_S]) or 0
  write_stats(KEYS[1], KEYS[2], ARGV[1], stats)
end
for i = 3, #ARGV do
  local other = redis.call('HGET', KEYS[3], ARGV[i])
  if other then
    local item = cmsgpack.unpack(other)
    item[2][POSTPONED] = item[2][POSTPONED] + 1
    redis.call('HSET', KEYS[3], ARGV[i], cmsgpack.pack(item))
  end
end
