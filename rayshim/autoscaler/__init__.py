"""Starts and stops nodes as the work of a cluster needs them.

The control service says what waits (:mod:`rayshim.lineage.demand`), the planner decides
(:mod:`rayshim.lineage.autoscaling`), a :class:`~rayshim.autoscaler.provider.Provider`
starts and stops nodes, and :class:`~rayshim.autoscaler.loop.Autoscaler` is the loop
around them. :class:`rayshim.cluster_utils.AutoscalingCluster` runs all of it on this
machine.
"""

from __future__ import annotations
