-- KEYS load, changes, window of each sample   ARGV window_s, then of each sample: worker, kind, total, count
local window_s = tonumber(ARGV[1])
local at = now()
for i = 3, #KEYS do
  local first = 2 + (i - 3) * 4
  local worker, kind, total, count = ARGV[first], ARGV[first + 1], tonumber(ARGV[first + 2]), tonumber(ARGV[first + 3])
  local stats = read_stats(KEYS[1], worker)
  if stats then
    local buckets = read_window(KEYS[i], at, window_s)
    local bucket = buckets[#buckets]
    if not bucket or bucket[1] ~= math.floor(at) then
      bucket = {math.floor(at), 0, 0, 0, 0}
      buckets[#buckets + 1] = bucket
    end
    local sum = kind == 'ttft' and 2 or 4
    bucket[sum] = bucket[sum] + total
    bucket[sum + 1] = bucket[sum + 1] + count
    fold_window(stats, buckets)
    redis.call('SET', KEYS[i], cmsgpack.pack(buckets), 'PX', math.ceil(window_s + 1) * 1000)
    write_stats(KEYS[1], KEYS[2], worker, stats)
  end
end
