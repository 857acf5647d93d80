"""Kubernetes without Kubernetes, for tests and for trying things out."""
