"""Judge models behind a gateway: it holds the keys, and only verifiers reach it."""
