"""How a trial goes on when its sandbox dies: the journal of its tool calls, and who makes them again."""
