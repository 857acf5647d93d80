"""Dask as the engine of the cluster. Nothing else imports ``distributed``."""
