-- KEYS load, changes   ARGV generation and number of the last change that the caller has seen
return (read_load(KEYS[1], KEYS[2], ARGV[1], ARGV[2]))
