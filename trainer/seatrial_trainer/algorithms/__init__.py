"""The training algorithm as pure functions: rewards to advantages, weights and token losses."""
