"""What the files of a sandbox are: remembered, packed, put back, compared and judged."""
