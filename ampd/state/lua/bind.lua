-- KEYS load, session   ARGV worker, epoch, tokens, epoch that may be replaced ('' = none), idle_ms, least version
local worker, epoch, tokens, replace = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
local bound = redis.call('HGET', KEYS[2], 'epoch')
if not bound or (replace ~= '' and bound == replace) then
  redis.call('HDEL', KEYS[2], 'ledger', 'handle', 'tokens', 'derived')
  redis.call('HSET', KEYS[2], 'worker', worker, 'epoch', epoch)
  local stats = read_stats(KEYS[1], worker)
  if stats then
    stats[PROMISED] = stats[PROMISED] + tokens
    write_stats(KEYS[1], worker, stats)
  end
end
local version = math.max(tonumber(redis.call('HGET', KEYS[2], 'version') or '0'), tonumber(ARGV[6])) + 1
redis.call('HSET', KEYS[2], 'version', version)
redis.call('PEXPIRE', KEYS[2], ARGV[5])
return redis.call('HMGET', KEYS[2], 'worker', 'epoch', 'round', 'version', 'tokens', 'derived')
