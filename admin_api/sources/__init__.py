"""Kinds of places that adapters are fetched from, one file for each scheme; the folder is their list."""
