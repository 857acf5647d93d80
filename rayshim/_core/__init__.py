"""The engine behind the public names: peers, calls, objects and executors."""
