"""What happened in a session, in files: written while it runs, read at any time."""
