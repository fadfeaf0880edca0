"""What the broker decides, as plain objects: no client, no event loop, no clock; time comes in as an argument."""
