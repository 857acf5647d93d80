"""The dashboard: a process that shows a cluster, and takes jobs for it."""
