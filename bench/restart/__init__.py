"""Kills a server at bad moments, again and again, and looks whether anything that it had acknowledged is lost."""
