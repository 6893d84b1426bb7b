"""Scripts that run in the environment of a tool; nothing here is imported by Aril itself."""
