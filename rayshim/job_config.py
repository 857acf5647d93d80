"""Settings of a job, as an alternative to parameters of ``init``."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Self

__all__ = ["JobConfig", "LoggingConfig"]

_LIFETIMES = ("detached", "non_detached")
_ENCODINGS = ("TEXT", "JSON")
#: Attributes of ``logging.LogRecord`` that may be added to each line.
_RECORD_ATTRIBUTES = frozenset(
    "args asctime created exc_info exc_text filename funcName levelname levelno lineno "
    "message module msecs msg name pathname process processName relativeCreated "
    "stack_info taskName thread threadName".split()
)


@dataclass
class LoggingConfig:
    """How the processes of a job write their log.

    Args:
        encoding: "TEXT" or "JSON".
        log_level: name of the lowest level that is written.
        additional_log_standard_attrs: attributes of log records that each line has
            besides the usual ones.

    Raises:
        ValueError: an unknown encoding or attribute.

    Example:
        >>> LoggingConfig(encoding="JSON").to_dict()["encoding"]
        'JSON'
    """

    encoding: str = "TEXT"
    log_level: str = "INFO"
    additional_log_standard_attrs: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.encoding not in _ENCODINGS:
            raise ValueError(
                f"Invalid encoding type: {self.encoding}. Valid encoding types are: "
                f"{list(_ENCODINGS)}"
            )
        for name in self.additional_log_standard_attrs:
            if name not in _RECORD_ATTRIBUTES:
                raise ValueError(
                    f"Unknown python logging standard attribute: {name}. The valid "
                    f"attributes are: {sorted(_RECORD_ATTRIBUTES)}"
                )

    def to_dict(self) -> dict[str, Any]:
        """Return the values by name."""
        return asdict(self)

    @classmethod
    def from_dict(cls, d: dict[str, Any]) -> Self:
        """Make one of values by name; unknown names are ignored."""
        known = cls.__dataclass_fields__
        return cls(**{name: value for name, value in d.items() if name in known})


class JobConfig:
    """Settings of a job.

    Args:
        jvm_options: options of Java processes; kept only.
        code_search_path: folders with code, as a list.
        runtime_env: of all tasks and actors that do not say otherwise.
        metadata: text by name, for people.
        ray_namespace: where named actors are looked up.
        default_actor_lifetime: "detached" or "non_detached".

    Raises:
        TypeError: ``code_search_path`` is no list.
        ValueError: an unknown lifetime.

    Example:
        >>> JobConfig(ray_namespace="blue").ray_namespace
        'blue'
    """

    def __init__(
        self,
        jvm_options: list[str] | None = None,
        code_search_path: list[str] | None = None,
        runtime_env: dict[str, Any] | None = None,
        _client_job: bool = False,
        metadata: dict[str, str] | None = None,
        ray_namespace: str | None = None,
        default_actor_lifetime: str = "non_detached",
        _disable_job_level_lineage_reconstruction: bool = False,
        _py_driver_sys_path: list[str] | None = None,
    ) -> None:
        self.jvm_options = jvm_options or []
        self.code_search_path = code_search_path or []
        if not isinstance(self.code_search_path, (list, tuple)):
            raise TypeError(
                "The type of code search path is incorrect: "
                f"{type(code_search_path)}, expected a list"
            )
        self._client_job = _client_job
        self.metadata = metadata or {}
        self.ray_namespace = ray_namespace
        self.runtime_env: dict[str, Any] = {}
        self.set_runtime_env(runtime_env)
        self.set_default_actor_lifetime(default_actor_lifetime)
        self._disable_job_level_lineage_reconstruction = (
            _disable_job_level_lineage_reconstruction
        )
        self._py_driver_sys_path = _py_driver_sys_path or []
        self.py_logging_config: LoggingConfig | None = None

    def set_metadata(self, key: str, value: str) -> None:
        """Add a text for people."""
        self.metadata[key] = value

    def set_runtime_env(
        self, runtime_env: dict[str, Any] | None, validate: bool = False
    ) -> None:
        """Replace the runtime_env.

        Raises:
            TypeError, ValueError: ``validate`` is set and a field is wrong.
        """
        if validate and runtime_env is not None:
            from rayshim.runtime_env import RuntimeEnv

            runtime_env = RuntimeEnv(**runtime_env)
        self.runtime_env = {} if runtime_env is None else runtime_env

    def set_ray_namespace(self, ray_namespace: str) -> None:
        """Replace the namespace of named actors."""
        self.ray_namespace = ray_namespace

    def set_default_actor_lifetime(self, default_actor_lifetime: str) -> None:
        """Replace the lifetime of actors that do not say theirs.

        Raises:
            ValueError: it is neither "detached" nor "non_detached".
        """
        if default_actor_lifetime not in _LIFETIMES:
            raise ValueError(
                "Default actor lifetime must be one of `detached`, `non_detached`, not "
                f"{default_actor_lifetime!r}"
            )
        self.default_actor_lifetime = default_actor_lifetime

    def set_py_logging_config(
        self, logging_config: LoggingConfig | None = None
    ) -> None:
        """Replace how the job's processes write their log."""
        self.py_logging_config = logging_config

    def ensure_logging_config(
        self, logging_config: LoggingConfig | None = None
    ) -> None:
        """Set how the job's processes write their log, unless that is set."""
        if self.py_logging_config is None:
            self.py_logging_config = logging_config

    @classmethod
    def from_json(cls, job_config_json: dict[str, Any]) -> Self:
        """Make one of values by name; unknown names are ignored."""
        return cls(
            jvm_options=job_config_json.get("jvm_options"),
            code_search_path=job_config_json.get("code_search_path"),
            runtime_env=job_config_json.get("runtime_env"),
            metadata=job_config_json.get("metadata"),
            ray_namespace=job_config_json.get("ray_namespace"),
            _client_job=job_config_json.get("client_job", False),
            _py_driver_sys_path=job_config_json.get("py_driver_sys_path"),
            default_actor_lifetime=job_config_json.get(
                "default_actor_lifetime", "non_detached"
            ),
        )
