"""The parts of an `RLRun`'s spec, one module per idea."""
