-- KEYS session   ARGV worker, epoch, version, closed, round, tokens, derived, handle ('' = none), ledger, idle_ms, held ('' = keep)
local epoch, version, closed = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local known = redis.call('HMGET', KEYS[1], 'epoch', 'closed', 'version')
if not known[1] then
  redis.call('HSET', KEYS[1], 'worker', ARGV[1], 'epoch', epoch)
end
if not known[1] or known[1] == epoch then
  if not known[2] or closed > tonumber(known[2]) then
    redis.call('HSET', KEYS[1], 'closed', ARGV[4], 'round', ARGV[5], 'tokens', ARGV[6], 'derived', ARGV[7])
    put_ledger(KEYS[1], ARGV[9])
    if ARGV[11] ~= '' then redis.call('HSET', KEYS[1], 'held', ARGV[11]) end
    redis.call('HDEL', KEYS[1], 'handle')
    if ARGV[8] ~= '' then redis.call('HSET', KEYS[1], 'handle', ARGV[8]) end
  end
  redis.call('HSET', KEYS[1], 'version', whole(math.max(tonumber(known[3] or '0'), version)))
  redis.call('PEXPIRE', KEYS[1], ARGV[10])
end
local row = redis.call('HMGET', KEYS[1], unpack(SESSION))
row[HANDLE] = false
return row
