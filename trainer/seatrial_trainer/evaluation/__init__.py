"""Measuring a policy: unbiased estimates with intervals that respect the clustering by task."""
