"""Services: observe, plan, apply, one status write, events."""
