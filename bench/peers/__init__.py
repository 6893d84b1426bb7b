"""Other engines, each in an environment of its own, beside Aril: one file for each (see __main__.py)."""
