"""Child processes: forking them fast, and never leaving them behind."""
