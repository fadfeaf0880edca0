"""What documents say, as text and tables: for people and verifiers who look at what an agent changed."""
