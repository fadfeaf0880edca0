"""The `seatrial` command."""
