"""What a run's stored records tell a person."""
