"""ampd: adaptive multi-round prefill/decode serving for NVIDIA Dynamo."""

__version__ = "0.1.0"
