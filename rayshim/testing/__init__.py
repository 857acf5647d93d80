"""Tools for testing rayshim and programs that use it."""
