"""Bulk transfer of values between nodes over Arrow Flight.

Nothing here may be imported before a node process has forked its fork server: gRPC
starts threads, which a fork does not take along. Only clusters import it.
"""
