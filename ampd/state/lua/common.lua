-- Before each script go those paragraphs of this file whose names it mentions (state/scripts.py): what a script does not use would
-- cost it time all the same.

-- A worker's figures are one packed array: see state/rows.py, Stats and Bucket.
-- Worker ids are 64-bit and Lua numbers are doubles, so ids stay strings: field names, never unpacked numbers.
local AT, TASKS, QUEUED_S, PROMISED, PROMISED_BEFORE, TTFT_S, ITL_S = 1, 2, 3, 4, 5, 6, 7

-- More changed workers than this are read as all workers: Lua passes only some thousands of arguments.
local MANY = 1500

-- A session's row, in the order in which scripts answer with it; last the hash that stands for the ledger.
local SESSION = {'worker', 'epoch', 'round', 'version', 'tokens', 'derived', 'held', 'handle', 'tail'}
local VERSION, HANDLE, TAIL = 4, 8, 9

-- A ledger's last chain hash stands for all of it.
local function put_ledger(session, ledger)
  redis.call('HSET', session, 'ledger', ledger, 'tail', string.sub(ledger, -16))
end

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

-- Each change of a worker takes the next number, by which readers find what has changed since they looked.
local function write_stats(load, changes, worker, stats)
  redis.call('HSET', load, worker .. ':s', cmsgpack.pack(stats))
  redis.call('ZADD', changes, redis.call('HINCRBY', load, 'seq', 1), worker)
end

-- What has changed since number `since` of generation `gen`: {time in us, gen, seq, workers, their rows and stats}, or all rows,
-- {time in us, gen, seq, all fields}, for who has read another generation (a worker was removed, or all was lost) or too little.
-- Beside it the id of the last binding.
local function read_load(load, changes, gen, since)
  local head = redis.call('HMGET', load, 'gen', 'seq', 'bound')
  local at = now() * 1e6
  if head[1] and head[1] == gen then
    if head[2] == since then return {at, gen, since, {}, {}}, head[3] end
    if tonumber(head[2]) > tonumber(since) then
      local workers = redis.call('ZRANGEBYSCORE', changes, '(' .. since, '+inf')
      if #workers <= MANY then
        local fields = {}
        for i, worker in ipairs(workers) do
          fields[2 * i - 1] = worker
          fields[2 * i] = worker .. ':s'
        end
        return {at, gen, head[2], workers, redis.call('HMGET', load, unpack(fields))}, head[3]
      end
    end
  end
  return {at, head[1] or '', head[2] or '0', redis.call('HGETALL', load)}, head[3]
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
