-- KEYS session
local session = redis.call('HMGET', KEYS[1], unpack(SESSION))
redis.call('DEL', KEYS[1])
return session
