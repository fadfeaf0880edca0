"""Whether a world is fit to train in: its tasks, verifiers and tools tried in ways that training never says aloud."""
