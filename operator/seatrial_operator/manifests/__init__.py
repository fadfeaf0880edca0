"""Kubernetes objects that the operator makes, as pure functions from a run and the operator's settings."""
