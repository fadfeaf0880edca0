"""Runs in a cluster, seen and steered from a terminal with the user's own rights."""
