"""OpenTelemetry traces of tasks and actors.

``init(_tracing_startup_hook="module:function")`` turns them on: the function runs in
the driver and in each executor, and sets up a tracer provider. Needs the extra
``tracing``.
"""

from __future__ import annotations
