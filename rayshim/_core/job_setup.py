"""What the processes of a job set up for it: modules, logs, traces.

The driver says it once; each lease brings it to its executor as JSON
(``BindLease.job_blob``), which looks at it when it is another one than before.
"""

from __future__ import annotations

import json
import logging
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rayshim._core.peer import Peer

logger = logging.getLogger(__name__)


def begin(peer: Peer, setup: dict[str, Any]) -> None:
    """Set a driver up, and have its executors do the same.

    Args:
        peer: the driver's.
        setup: "logging" and "tracing", as ``InitOptions.job_setup``.

    Raises:
        ValueError: the level of the log, or the place of the hook, is unknown.
    """
    if "logging" in setup:
        from rayshim._core import log_setup

        log_setup.apply(setup["logging"])
    if "tracing" in setup:
        from rayshim._core import trace_hooks

        trace_hooks.begin(setup["tracing"])
    peer.job_blob = json.dumps(setup).encode()


def end() -> None:
    """Take back what the next session of this process must not have."""
    hooks = sys.modules.get("rayshim._core.trace_hooks")
    if hooks is not None:
        hooks.end()
    registry = sys.modules.get("rayshim._core.metric_registry")
    if registry is not None:
        registry.registry.flush()


def enter(peer: Peer, job_blob: bytes) -> None:
    """Set an executor up for a job."""
    facts = json.loads(job_blob)
    # Modules are looked for where the driver does, last.
    for path in facts.get("sys_path", ()):
        if path not in sys.path:
            sys.path.append(path)
    if facts.get("as_ray"):
        from rayshim import dropin

        dropin.inherit()
    if "logging" in facts:
        from rayshim._core import log_setup

        log_setup.apply(facts["logging"])
    if "tracing" in facts:
        from rayshim._core import trace_hooks

        try:
            trace_hooks.enter(peer, facts["tracing"])
        except Exception:
            # Calls go on without traces; the driver's own hook has worked.
            logger.exception("the tracing hook %s failed here", facts["tracing"])
