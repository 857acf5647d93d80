"""A small Kubernetes in processes of this machine; see docs/localkube.md."""
