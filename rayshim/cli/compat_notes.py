"""What `rayshim compat` says of names that exist, but differ or are refused.

``docs/compatibility.md`` has the whole; a test compares the names with it.
"""

from __future__ import annotations

#: Name -> what is different.
DIFFERENT = {
    "ray.cancel": "interrupts a running call at once, also of a plain actor",
    "ray.wait": "returns the first references that are ready, in the order given",
    "ray.timeline": "holds the calls that have ended; times are of the executors",
    "ray.util.remove_placement_group": (
        "what is asked for in a removed group fails at once instead of waiting"
    ),
    "ray.cluster_resources": "shows no resources of placement groups",
    "ray.available_resources": "shows no resources of placement groups",
    "ray.__version__": "ends in +rayshim and rayshim's own version",
}

#: Name, or "name(parameter)" -> what to do instead.
REFUSED = {
    "ray.data": "not part of this version",
    "ray.train": "not part of this version",
    "ray.tune": "not part of this version",
    "ray.serve": "not part of this version",
    "ray.air": "not part of this version",
    "ray.rllib": "not part of rayshim",
    "ray.java_function": "there is no Java; write it in Python",
    "ray.java_actor_class": "there is no Java; write it in Python",
    "ray.cross_language": "there is no Java or C++; write it in Python",
    "ray.init(local_mode)": "gone from Ray too; use a debugger in the task",
    "ray.init(enable_resource_isolation)": "use the limits of your containers",
}
