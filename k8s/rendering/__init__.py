"""The objects of the platform, by subject; see :mod:`rayshim.k8s.render`."""
