"""What the program of a job has from its job: its runtime environment, and its name."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rayshim._core.peer import Peer

#: What the program of a job inherits, as JSON; Ray's name.
CONFIG_VARIABLE = "RAY_JOB_CONFIG_JSON_ENV_VAR"
#: Its submission id.
ID_VARIABLE = "RAYSHIM_JOB_SUBMISSION_ID"
#: "1": what the program asks for takes the place of what the job has; Ray's name.
OVERRIDE_VARIABLE = "RAY_OVERRIDE_JOB_RUNTIME_ENV"


def with_job(runtime_env: Any) -> Any:
    """The environment that ``init`` asks for, laid over that of its job.

    Args:
        runtime_env: as given to ``init``.

    Raises:
        ValueError: both set the same field, or variable, differently.
    """
    text = os.environ.get(CONFIG_VARIABLE)
    of_job: dict[str, Any] = (json.loads(text) if text else {}).get("runtime_env") or {}
    if not of_job:
        return runtime_env
    if hasattr(runtime_env, "to_dict"):
        runtime_env = runtime_env.to_dict()
    if not runtime_env or not isinstance(runtime_env, dict):
        return runtime_env or of_job
    own = dict(runtime_env)
    if os.environ.get(OVERRIDE_VARIABLE) != "1":
        _refuse_conflicts(of_job, own)
    variables = {**(of_job.get("env_vars") or {}), **(own.get("env_vars") or {})}
    merged = {**of_job, **own}
    if variables:
        merged["env_vars"] = variables
    return merged


def _refuse_conflicts(of_job: dict[str, Any], own: dict[str, Any]) -> None:
    fields = [
        name
        for name in own.keys() & of_job.keys()
        if name != "env_vars" and own[name] != of_job[name]
    ]
    variables, asked = of_job.get("env_vars") or {}, own.get("env_vars") or {}
    fields += [
        f"env_vars[{name!r}]"
        for name in asked.keys() & variables.keys()
        if asked[name] != variables[name]
    ]
    if fields:
        raise ValueError(
            "Failed to merge the Job's runtime env with a ray.init's runtime env "
            f"because of a conflict: both set {', '.join(sorted(fields))}. Set it in "
            f"one place, or set {OVERRIDE_VARIABLE}=1 to have init() win."
        )


def tell(peer: Peer, job_id: bytes) -> None:
    """Says that this driver is the program of a submitted job, if it is."""
    name = os.environ.get(ID_VARIABLE)
    if name:
        from rayshim.jobs.info import DriverInfo
        from rayshim.jobs.records import Records

        program = DriverInfo(
            id=job_id.hex(), node_ip_address=peer.node_ip, pid=str(os.getpid())
        )
        Records(peer.request).set_program(name, program)
