"""The driver: runs the stages of one segment and tells what it does."""
