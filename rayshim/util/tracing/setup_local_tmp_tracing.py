"""A hook that writes spans to files: ``/tmp/spans/PID.txt``, one for each process.

Example:
    ``ray.init(_tracing_startup_hook="ray.util.tracing.setup_local_tmp_tracing:``
    ``setup_tracing")``
"""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["setup_tracing", "spans_dir"]

#: Where the files are.
spans_dir = "/tmp/spans"


def setup_tracing() -> None:
    """Write the spans of this process to a file, each when it ends.

    Raises:
        PermissionError: the folder belongs to another user.
        ImportError: OpenTelemetry's SDK is not installed.
    """
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

    folder = Path(spans_dir)
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise PermissionError(
            f"{folder} belongs to another user; remove it, or write a hook of your own"
        )
    file = open(folder / f"{os.getpid()}.txt", "a")
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter(out=file)))
    trace.set_tracer_provider(provider)
