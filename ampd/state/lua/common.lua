-- Put before every script. A worker's figures are one packed array: see state/rows.py, Stats and Bucket.
-- Worker ids are 64-bit and Lua numbers are doubles, so ids stay strings: field names, never unpacked numbers.
local AT, TASKS, QUEUED_S, PROMISED, PROMISED_BEFORE, TTFT_S, ITL_S = 1, 2, 3, 4, 5, 6, 7

local function now()
  local time = redis.call('TIME')
  return tonumber(time[1]) + tonumber(time[2]) / 1e6
end

-- Redis would write a number of more than 14 digits as a float.
local function whole(number)
  return string.format('%.0f', number)
end

local function read_stats(load, worker)
  local raw = redis.call('HGET', load, worker .. ':s')
  return raw and cmsgpack.unpack(raw)
end

local function write_stats(load, worker, stats)
  redis.call('HSET', load, worker .. ':s', cmsgpack.pack(stats))
end

-- The buckets {second, ttft_sum, ttft_count, itl_sum, itl_count} of the last window_s whole seconds, the running one included.
local function read_window(key, at, window_s)
  local raw = redis.call('GET', key)
  local kept = {}
  if raw then
    local oldest = math.floor(at) - math.ceil(window_s) + 1
    for _, bucket in ipairs(cmsgpack.unpack(raw)) do
      if bucket[1] >= oldest then kept[#kept + 1] = bucket end
    end
  end
  return kept
end

local function fold_window(stats, buckets)
  local sums = {0, 0, 0, 0}
  for _, bucket in ipairs(buckets) do
    for i = 1, 4 do sums[i] = sums[i] + bucket[i + 1] end
  end
  stats[TTFT_S] = sums[2] > 0 and sums[1] / sums[2] or -1
  stats[ITL_S] = sums[4] > 0 and sums[3] / sums[4] or -1
end
