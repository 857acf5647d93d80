"""State machines and policies: facts in, commands out, no I/O."""
