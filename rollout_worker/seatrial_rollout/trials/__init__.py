"""One trial: a task, a sandbox, an agent, a verdict."""
