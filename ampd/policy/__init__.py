"""Pure scheduling decisions: no I/O, no clock, nothing of ampd but its errors and cost model."""
