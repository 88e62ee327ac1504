"""The worker process: prefill queue, pins, statistics, around an engine it owns."""
