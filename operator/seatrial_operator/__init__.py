"""The Seatrial operator: reconciles RLRuns, RolloutPools and WorldImages."""
