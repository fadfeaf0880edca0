"""How the quickstart's policy is made: a tokenizer, a clerk with bad habits, and a model that imitates the clerk."""
