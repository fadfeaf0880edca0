"""What a person and a monitoring system see of a run."""
