"""Token in, token out: what the engine produced is never re-tokenised."""
