"""The door to the token log for agents that speak OpenAI's or Anthropic's API."""
