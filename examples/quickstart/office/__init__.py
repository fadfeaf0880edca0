"""A small trading company on disk: its files, the work it hands out, and how that work is graded."""
