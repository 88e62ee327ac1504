-- KEYS load, changes, session, bindings   ARGV worker, epoch, tokens,
-- epoch that may be replaced ('' = none), idle_ms, least version, session
-- Versions of a new session start at the time, above all those of a session of that name that has ended: its late closes lose.
local worker, epoch, tokens, replace, least = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4], tonumber(ARGV[6])
local known = redis.call('HMGET', KEYS[3], 'epoch', 'version', 'handle')
local version, displaced = tonumber(known[2] or '0'), false
local replaced = known[1] and replace ~= '' and known[1] == replace
if not known[1] then
  version = math.max(math.floor(now() * 1e6), least)
  redis.call('HSET', KEYS[3], 'closed', whole(version))
end
if not known[1] or replaced then
  displaced = known[3]
  redis.call('HDEL', KEYS[3], 'ledger', 'tail', 'handle', 'tokens', 'derived')
  redis.call('HSET', KEYS[3], 'worker', worker, 'epoch', epoch)
  local stats = read_stats(KEYS[1], worker)
  if stats then
    stats[PROMISED] = stats[PROMISED] + tokens
    write_stats(KEYS[1], KEYS[2], worker, stats)
  end
end
version = whole(math.max(version, least) + 1)
if not known[1] or replaced then
  local id = redis.call('XADD', KEYS[4], 'MAXLEN', '~', 10000, '*', 's', ARGV[7], 'w', worker, 'e', epoch, 'v', version)
  redis.call('PEXPIRE', KEYS[4], ARGV[5])
  if redis.call('HEXISTS', KEYS[1], 'gen') == 1 then redis.call('HSET', KEYS[1], 'bound', id) end
end
redis.call('HSET', KEYS[3], 'version', version)
redis.call('PEXPIRE', KEYS[3], ARGV[5])
local row = redis.call('HMGET', KEYS[3], unpack(SESSION))
row[HANDLE] = displaced
return row
