-- KEYS load, changes, session   ARGV generation and number of the last change that the caller has seen, idle_ms
-- The handle goes to this caller alone; the version numbers this opening.
local session = redis.call('HGETALL', KEYS[3])
if #session > 0 then
  redis.call('HDEL', KEYS[3], 'handle')
  session[#session + 1] = 'version'
  session[#session + 1] = whole(redis.call('HINCRBY', KEYS[3], 'version', 1))
  redis.call('PEXPIRE', KEYS[3], ARGV[3])
end
return {session, read_load(KEYS[1], KEYS[2], ARGV[1], ARGV[2])}
