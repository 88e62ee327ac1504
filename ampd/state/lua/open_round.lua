-- KEYS load, changes, bindings, session   ARGV generation and number of the last change that the caller has seen,
-- tail of the ledger that the caller has, id of the last binding that it has seen, idle_ms
-- The handle goes to this caller alone; the version numbers this opening.
local session, ledger = redis.call('HMGET', KEYS[4], unpack(SESSION)), false
if session[1] then
  if session[HANDLE] then redis.call('HDEL', KEYS[4], 'handle') end
  session[VERSION] = whole(redis.call('HINCRBY', KEYS[4], 'version', 1))
  redis.call('PEXPIRE', KEYS[4], ARGV[5])
  if session[TAIL] and session[TAIL] ~= ARGV[3] then ledger = redis.call('HGET', KEYS[4], 'ledger') end
end
local load, last = read_load(KEYS[1], KEYS[2], ARGV[1], ARGV[2])
local bindings = {}
if last ~= ARGV[4] then bindings = redis.call('XRANGE', KEYS[3], '(' .. ARGV[4], '+', 'COUNT', 100) end
return {session, ledger, load, bindings}
