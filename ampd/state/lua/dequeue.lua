-- KEYS load, changes, queue   ARGV worker, and for each task that has left: its id, how many tasks it had overtaken, their ids
local COST_S, POSTPONED = 6, 9
local left, left_s, at = 0, 0, 2
while at <= #ARGV do
  local task, overtaken = ARGV[at], tonumber(ARGV[at + 1])
  local raw = redis.call('HGET', KEYS[3], task)
  if raw then
    redis.call('HDEL', KEYS[3], task)
    left, left_s = left + 1, left_s + cmsgpack.unpack(raw)[2][COST_S]
    for i = at + 2, at + 1 + overtaken do
      local other = redis.call('HGET', KEYS[3], ARGV[i])
      if other then
        local item = cmsgpack.unpack(other)
        item[2][POSTPONED] = item[2][POSTPONED] + 1
        redis.call('HSET', KEYS[3], ARGV[i], cmsgpack.pack(item))
      end
    end
  end
  at = at + 2 + overtaken
end
local stats = left > 0 and read_stats(KEYS[1], ARGV[1])
if stats then
  stats[TASKS] = redis.call('HLEN', KEYS[3])
  stats[QUEUED_S] = stats[TASKS] > 0 and math.max(0, stats[QUEUED_S] - left_s) or 0
  write_stats(KEYS[1], KEYS[2], ARGV[1], stats)
end
