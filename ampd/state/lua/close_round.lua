-- KEYS session   ARGV epoch, version, round, tokens, derived, handle ('' = none), ledger, 1 if there is a ledger, idle_ms, held ('' = keep)
-- Returns the handle that nobody will use. `closed` is the version of the last round that closed.
local epoch, version, handle, has_ledger = ARGV[1], tonumber(ARGV[2]), ARGV[6], ARGV[8] == '1'
local known = redis.call('HMGET', KEYS[1], 'epoch', 'closed', 'handle', 'version')
local closed = tonumber(known[2] or '-1')
if known[1] ~= epoch or version < closed then
  return handle ~= '' and handle or false
end
if version == closed then return false end
redis.call('HSET', KEYS[1], 'closed', ARGV[2], 'round', ARGV[3], 'tokens', ARGV[4], 'derived', ARGV[5])
-- An opening of before a loss of this state may be ahead of the count.
if version > tonumber(known[4]) then redis.call('HSET', KEYS[1], 'version', ARGV[2]) end
redis.call('PEXPIRE', KEYS[1], ARGV[9])
if ARGV[10] ~= '' then redis.call('HSET', KEYS[1], 'held', ARGV[10]) end
if has_ledger then put_ledger(KEYS[1], ARGV[7]) end
if handle ~= '' then
  redis.call('HSET', KEYS[1], 'handle', handle)
elseif has_ledger then
  redis.call('HDEL', KEYS[1], 'handle')
else
  return false
end
return known[3]
