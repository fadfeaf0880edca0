"""A pool on its own: one engine per pod, behind one OpenAI-compatible endpoint."""
