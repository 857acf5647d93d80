"""What people and programs look through, and run jobs with."""
