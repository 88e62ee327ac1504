"""KV between engines: the vLLM connector and scheduler classes that ampd loads into the engine."""
