"""A whole cluster in one thread: virtual time, faults from one seed.

The processes are thin shells around the machines of :mod:`rayshim.lineage` and say what
``docs/design.md`` tells real ones to say.
:class:`~rayshim.adapters.sim.cluster.Cluster` makes them, gives them work, breaks
things, and judges what comes of it. The same seed gives the same run, to the last
event: ``python -m rayshim.adapters.sim --seed N``.
"""
