-- KEYS load, session   ARGV idle_ms
-- The handle goes to this caller alone; the version numbers this opening.
local session = redis.call('HGETALL', KEYS[2])
if #session > 0 then
  redis.call('HDEL', KEYS[2], 'handle')
  session[#session + 1] = 'version'
  session[#session + 1] = whole(redis.call('HINCRBY', KEYS[2], 'version', 1))
  redis.call('PEXPIRE', KEYS[2], ARGV[1])
end
return {redis.call('TIME'), redis.call('HGETALL', KEYS[1]), session}
