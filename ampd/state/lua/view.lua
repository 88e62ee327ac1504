-- KEYS load
return {redis.call('TIME'), redis.call('HGETALL', KEYS[1])}
