-- KEYS load, changes, queue   ARGV worker, task, packed entry, cost_s
local stats = read_stats(KEYS[1], ARGV[1])
if not stats then return end
local time = redis.call('TIME')
local stamp = tonumber(time[1]) * 1e6 + tonumber(time[2])
if redis.call('HSETNX', KEYS[3], ARGV[2], cmsgpack.pack({stamp, cmsgpack.unpack(ARGV[3])})) == 1 then
  stats[TASKS] = stats[TASKS] + 1
  stats[QUEUED_S] = stats[QUEUED_S] + tonumber(ARGV[4])
  write_stats(KEYS[1], KEYS[2], ARGV[1], stats)
end
