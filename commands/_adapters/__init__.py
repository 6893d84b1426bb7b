"""What `aril adapters` does, one file for each kind of action. Each takes the flags and the server, and tells."""
