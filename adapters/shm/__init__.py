"""The node store: large values as files in shared memory."""
