"""Jobs: programs that run in a cluster without the terminal that sent them.

A job is a detached actor that runs a command as a process of its own
(:mod:`.supervisor`, :mod:`.runner`), and a record in the cluster's key-value store
(:mod:`.records`), so that neither needs the dashboard, nor a head that stays.
"""
