"""Where tasks and actors run, over several nodes."""
