"""The parameters of ``init``: checked, and completed from the machine."""

from __future__ import annotations

import dataclasses
import logging
import math
import os
from dataclasses import dataclass, field
from typing import Any

from rayshim._core.addresses import cluster_address
from rayshim._core.gpus import ACCELERATOR_TYPE, visible_devices
from rayshim._core.node_labels import node_labels
from rayshim._core.runtime_env_merge import runtime_env_fields
from rayshim._core.sendable import check_text
from rayshim._core.store_size import MIN_STORE_BYTES, free_shm_bytes, store_limit
from rayshim.settings import Settings

#: There exactly when the machine has a loaded GPU driver.
_GPU_DRIVER = "/dev/nvidiactl"
MAX_STORE_BYTES = 200 * 10**9
STORE_FRACTION = 0.3

#: Parameters that belong to later stages -> what to do instead.
_UNSUPPORTED = {
    "allow_multiple": "use a process for each cluster: a process has one session",
    "_credentials": "leave it out: the cluster's token lets drivers in",
    "_metadata": "leave it out: there is no gRPC that would carry it",
    "enable_resource_isolation": "limit the process with a cgroup of its own",
    "cgroup_path": "limit the process with a cgroup of its own",
    "system_reserved_cpu": "pass a smaller num_cpus",
    "system_reserved_memory": "pass a smaller _memory",
    "proxy_server_url": "use the machine's own proxy settings",
    "_redis_max_memory": "leave it out: there is no Redis",
    "_plasma_directory": "leave it out: the store lives in /dev/shm",
    "_redis_username": "leave it out: there is no Redis",
    "storage": "pass absolute paths to what needs storage",
    "_cluster_id": "leave it out",
}


@dataclass
class InitOptions:
    """What a session is started with."""

    #: "auto" or "host:port" of a cluster to join; empty: one of its own.
    address: str = ""
    resources: dict[str, float] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    namespace: str = ""
    env_vars: dict[str, str] = field(default_factory=dict)
    runtime_env: dict[str, Any] = field(default_factory=dict)
    log_to_driver: bool = True
    #: What executors set up for the job beside its environment: "logging" (a
    #: ``LoggingConfig`` as a dict), "tracing" ("module:function").
    job_setup: dict[str, Any] = field(default_factory=dict)
    temp_dir: str | None = None
    settings: Settings = field(default_factory=Settings.from_environment)

    @classmethod
    def validate(
        cls,
        *,
        address: str | None = None,
        num_cpus: int | None = None,
        num_gpus: int | None = None,
        resources: dict[str, float] | None = None,
        labels: dict[str, str] | None = None,
        object_store_memory: int | None = None,
        local_mode: bool = False,
        include_dashboard: bool | None = None,
        dashboard_host: str = "127.0.0.1",
        dashboard_port: int | None = None,
        job_config: Any = None,
        configure_logging: bool = True,
        logging_level: Any = "info",
        logging_format: str | None = None,
        log_to_driver: bool | None = None,
        namespace: str | None = None,
        runtime_env: Any = None,
        **more: Any,
    ) -> InitOptions:
        """Check the parameters of ``init``.

        Raises:
            TypeError, ValueError, AssertionError, RuntimeError: as Ray does, naming
                the parameter.
            NotImplementedError: a parameter that is not supported, with what to do.
        """
        if local_mode:
            raise RuntimeError(
                "local_mode is gone from Ray's API; leave it out, and debug with "
                "num_cpus=1 or call the plain function"
            )
        temp_dir = more.pop("_temp_dir", None)
        address = cluster_address(address, temp_dir)
        memory = more.pop("_memory", None)
        system_config = more.pop("_system_config", None)
        node_name = more.pop("_node_name", None)
        metrics_port = more.pop("_metrics_export_port", None)
        logging_config = more.pop("logging_config", None)
        tracing = more.pop("_tracing_startup_hook", None)
        more.pop("_skip_env_hook", None)
        # Libraries make one up for each session; there is no Redis that had one.
        more.pop("_redis_password", None)
        node_ip = more.pop("_node_ip_address", None)
        if node_ip not in (None, "127.0.0.1", "localhost"):
            raise _unsupported("_node_ip_address", "leave it out: sessions are local")
        spill_dir = more.pop("object_spilling_directory", None)
        driver_level = more.pop("_driver_object_store_memory", None)
        if driver_level is not None:
            raise _unsupported("_driver_object_store_memory", "leave it out")
        for name, value in more.items():
            if name not in _UNSUPPORTED:
                raise RuntimeError(f"Unknown keyword argument(s): {name}")
            if value:
                raise _unsupported(name, _UNSUPPORTED[name])
        if address:
            _refuse_in_cluster(
                address,
                num_cpus=num_cpus,
                num_gpus=num_gpus,
                resources=resources,
                labels=labels,
                object_store_memory=object_store_memory,
            )
        options = cls(address, settings=Settings.from_environment(system_config))
        options.resources = _resources(
            num_cpus, num_gpus, resources, object_store_memory, memory
        )
        if spill_dir:
            options.settings = dataclasses.replace(
                options.settings, spill_dir=os.fspath(spill_dir)
            )
        if metrics_port is not None:
            options.settings = dataclasses.replace(
                options.settings, metrics_port=int(metrics_port)
            )
        options.settings = _with_dashboard(
            options.settings, include_dashboard, dashboard_host, dashboard_port
        )
        if not options.settings.object_store_limit_bytes:
            options.settings = dataclasses.replace(
                options.settings,
                object_store_limit_bytes=store_limit(
                    object_store_memory, *_machine_memory(), free_shm_bytes()
                ),
            )
        options.labels = node_labels(
            labels, _accelerator_type(options.resources), os.environ
        )
        if node_name is not None:
            options.labels["rayshim.io/node-name"] = str(node_name)
        options.temp_dir = temp_dir
        env = runtime_env
        if job_config is not None:
            namespace = namespace or getattr(job_config, "ray_namespace", None)
            env = env or getattr(job_config, "runtime_env", None)
            logging_config = logging_config or getattr(
                job_config, "py_logging_config", None
            )
        options.namespace = _namespace(namespace)
        if "RAY_JOB_CONFIG_JSON_ENV_VAR" in os.environ:
            from rayshim.jobs import inherited

            env = inherited.with_job(env)
        options.runtime_env = runtime_env_fields(env)
        options.env_vars = dict(options.runtime_env.get("env_vars") or {})
        if log_to_driver is not None:
            options.log_to_driver = bool(log_to_driver)
        options.job_setup = _job_setup(logging_config, tracing)
        if configure_logging and not logging_config:
            _configure_logging(logging_level, logging_format)
        return options


def _with_dashboard(
    settings: Settings, include: bool | None, host: str, port: int | None
) -> Settings:
    if include is False:
        return dataclasses.replace(settings, dashboard_port=-1)
    if not isinstance(host, str) or not host:
        raise TypeError(f"dashboard_host must be an address, not {host!r}")
    if host != "127.0.0.1":
        settings = dataclasses.replace(settings, dashboard_host=host)
    if port is not None:
        if isinstance(port, bool) or not isinstance(port, int):
            raise TypeError(f"dashboard_port must be a whole number, not {port!r}")
        if not 0 <= port < 65536:
            raise ValueError(f"dashboard_port must be from 0 to 65535, not {port}")
        settings = dataclasses.replace(settings, dashboard_port=port)
    elif include and settings.dashboard_port < 0:
        settings = dataclasses.replace(settings, dashboard_port=0)
    return settings


def _unsupported(name: str, instead: str) -> NotImplementedError:
    return NotImplementedError(f"init(): {name} is not supported; {instead}")


def _refuse_in_cluster(address: str, /, **parameters: Any) -> None:
    for name, value in parameters.items():
        if value is not None:
            raise ValueError(
                f"When connecting to an existing cluster, {name} must not be provided: "
                f"nodes of address={address!r} have their resources already; "
                "leave it out, or give address='local' for a session of its own"
            )


def _namespace(namespace: str | None) -> str:
    if namespace is None:
        return ""
    if not isinstance(namespace, str):
        raise TypeError(f"namespace must be None or a string, not {type(namespace)}")
    if not namespace:
        raise ValueError('"" is not a valid namespace. Use None for an anonymous one.')
    check_text("namespace", namespace)
    return namespace


def _whole(name: str, value: Any) -> float | None:
    if value is None:
        return None
    assert isinstance(value, (int, float)) and not isinstance(value, bool), (
        f"{name} must be a number, not {value!r}"
    )
    if not 0 <= value < math.inf:
        raise ValueError(f"{name} must be nonnegative and finite, not {value}")
    if name != "custom" and value != int(value):
        raise ValueError(f"{name} must be a whole number, not {value}: whole numbers")
    return float(value)


def _resources(
    num_cpus: Any, num_gpus: Any, custom: Any, store: Any, memory: Any
) -> dict[str, float]:
    out: dict[str, float] = {}
    cpus = _whole("num_cpus", num_cpus)
    gpus = _whole("num_gpus", num_gpus)
    out["CPU"] = float(_machine_cpus()) if cpus is None else cpus
    gpu_count, gpu_type = _gpus(gpus)
    if gpu_count:
        out["GPU"] = gpu_count
    if gpu_type:
        out[ACCELERATOR_TYPE + gpu_type] = 1.0
    total, free = _machine_memory()
    if store is None:
        store = min(int(free * STORE_FRACTION), MAX_STORE_BYTES, _shm_bytes(total))
        store = max(store, MIN_STORE_BYTES)
    elif not MIN_STORE_BYTES <= store < math.inf:
        raise ValueError(
            f"object_store_memory is {store} bytes; it must be at least "
            f"{MIN_STORE_BYTES} (75 MiB)"
        )
    out["object_store_memory"] = float(store)
    if memory is not None and not 0 <= memory < math.inf:
        raise ValueError(f"memory is {memory} bytes; it must be at least 0")
    out["memory"] = float(memory if memory is not None else max(0, free - store))
    for name, amount in (custom or {}).items():
        assert name not in ("CPU", "GPU", "memory", "object_store_memory"), (
            f"resources may not contain {name!r}: use the parameter of its own"
        )
        if not isinstance(name, str):
            raise TypeError(f"resources maps text to numbers, not {name!r}")
        value = _whole("custom", amount)
        if value is not None and value != int(value):
            raise ValueError(
                "Resource quantities must all be whole numbers: a node has no "
                f"{value:g} of {name!r}"
            )
        if value:
            out[name] = value
    return out


def _accelerator_type(resources: dict[str, float]) -> str:
    """The type of the node's GPUs, if it has some and it is known."""
    for name in resources:
        if name.startswith(ACCELERATOR_TYPE):
            return name.removeprefix(ACCELERATOR_TYPE)
    return ""


def _machine_cpus() -> int:
    return len(os.sched_getaffinity(0))


def _gpus(asked: float | None) -> tuple[float, str]:
    """How many GPUs a node has, and their type if it is known.

    Raises:
        ValueError: more are asked for than ``CUDA_VISIBLE_DEVICES`` names.
    """
    visible = visible_devices(os.environ)
    if asked is not None and visible is not None and asked > len(visible):
        raise ValueError(
            f"num_gpus is {asked:g}, but CUDA_VISIBLE_DEVICES names {len(visible)} "
            f"devices: {','.join(visible) or 'none'}. Pass a smaller num_gpus, or "
            "unset the variable"
        )
    if asked == 0 or not os.path.exists(_GPU_DRIVER):
        return asked or 0.0, ""
    from rayshim.adapters.nvml.devices import accelerator_type, find

    found = find()
    if visible is not None:
        chosen = [one for one in found if str(one.number) in visible]
        # Devices may be named by their unique ids, too.
        found = chosen or found[: len(visible)]
    count = float(len(found)) if asked is None else asked
    return count, accelerator_type(found[0].name) if found and count else ""


def _machine_memory() -> tuple[int, int]:
    """Total and available bytes."""
    import psutil

    memory = psutil.virtual_memory()
    return memory.total, memory.available


def _shm_bytes(default: int) -> int:
    try:
        stat = os.statvfs("/dev/shm")
    except OSError:
        return default
    return int(stat.f_bavail * stat.f_frsize * 0.95)


def _job_setup(logging_config: Any, tracing: Any) -> dict[str, Any]:
    setup: dict[str, Any] = {}
    if logging_config is not None:
        from rayshim.job_config import LoggingConfig

        if not isinstance(logging_config, LoggingConfig):
            raise TypeError(
                f"logging_config must be a LoggingConfig, not {type(logging_config)}"
            )
        setup["logging"] = logging_config.to_dict()
    if tracing is not None:
        is_place = isinstance(tracing, str) and tracing.count(":") == 1
        if not is_place:
            raise ValueError(
                f"_tracing_startup_hook is 'module:function', not {tracing!r}"
            )
        setup["tracing"] = tracing
    return setup


def _configure_logging(level: Any, text_format: str | None) -> None:
    logger = logging.getLogger("rayshim")
    if isinstance(level, str):
        number = logging.getLevelNamesMapping().get(level.upper())
        if number is None:
            raise ValueError(
                f"logging_level {level!r} is unknown; use debug, info, warning, "
                "error or critical"
            )
        level = number
    logger.setLevel(level)
    if not logger.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(
            logging.Formatter(
                text_format or "%(asctime)s\t%(levelname)s -- %(message)s"
            )
        )
        logger.addHandler(handler)
        logger.propagate = False
