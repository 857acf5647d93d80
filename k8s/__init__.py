"""Running rayshim on Kubernetes."""
