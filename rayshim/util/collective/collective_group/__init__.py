"""Groups of processes, one module for each backend."""
