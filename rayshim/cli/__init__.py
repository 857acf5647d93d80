"""The `rayshim` command."""
