"""The node process: raylet, executor pool, log relay and control service."""
