"""A simulated firm: its facts, its files, and the work that there is to do in it."""
