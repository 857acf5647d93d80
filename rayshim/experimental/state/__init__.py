"""``ray.experimental.state``: the former place of :mod:`rayshim.util.state`."""
