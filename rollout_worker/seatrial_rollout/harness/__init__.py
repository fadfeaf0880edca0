"""Agent loops around the model."""
