"""Rollouts: engines, token-exact sessions, harnesses and trials."""
