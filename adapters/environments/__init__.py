"""Building what a runtime_env asks for on a node: files, packages, interpreters."""
