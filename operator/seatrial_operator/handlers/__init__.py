"""Watching the cluster; kopf is imported nowhere else."""
