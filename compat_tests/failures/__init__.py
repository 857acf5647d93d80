"""Failures: processes that die, owners that vanish, calls that run again.

The same programs run on real Ray and on rayshim, like the rest of the suite.
"""
