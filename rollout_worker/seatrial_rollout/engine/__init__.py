"""Inference engines: one vLLM server each, under a Ray actor."""
