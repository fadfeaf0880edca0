"""Prometheus metrics, made from the API's table. A process exports those of the modules that it imports."""
