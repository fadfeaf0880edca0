"""What runs inside a sandbox: the daemon and the MCP tool servers."""
