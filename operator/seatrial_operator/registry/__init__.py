"""Container registries: from a tag to a digest, and the credentials that nodes pull with."""
