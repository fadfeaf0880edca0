"""Policy backends behind one small protocol."""
