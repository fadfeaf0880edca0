"""The training loop: driver, scheduling, algorithms, policy backends and storage."""
