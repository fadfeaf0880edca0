"""Weight synchronisation: how a new policy version reaches the engines."""
