-- KEYS load, changes, session, bindings   ARGV generation and number of the last change that the caller has seen, idle_ms,
-- tail of the ledger that the caller has, id of the last binding that it has seen. The handle goes to this caller alone; the version numbers this opening.
local session, ledger = redis.call('HMGET', KEYS[3], unpack(SESSION)), false
if session[1] then
  if session[HANDLE] then redis.call('HDEL', KEYS[3], 'handle') end
  session[VERSION] = whole(redis.call('HINCRBY', KEYS[3], 'version', 1))
  redis.call('PEXPIRE', KEYS[3], ARGV[3])
  local tail = redis.call('HGET', KEYS[3], 'tail')
  if tail and tail ~= ARGV[4] then ledger = redis.call('HGET', KEYS[3], 'ledger') end
  session[#SESSION + 1] = tail
end
local load, last = read_load(KEYS[1], KEYS[2], ARGV[1], ARGV[2])
local bindings = {}
if last ~= ARGV[5] then bindings = redis.call('XRANGE', KEYS[4], '(' .. ARGV[5], '+', 'COUNT', 100) end
return {session, ledger, load, bindings}
