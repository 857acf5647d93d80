"""What a task, actor or job needs around it: variables, files, packages.

A :class:`RuntimeEnv` is a dict whose known fields are checked as they are set; unknown
fields are kept. Which of them a session can build is for the session to say.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
from types import SimpleNamespace
from typing import Any, ClassVar, Self

from rayshim._core.runtime_env_fields import CHECKS, check_together, is_uri

__all__ = ["RuntimeEnv", "RuntimeEnvConfig"]

logger = logging.getLogger(__name__)

DEFAULT_SETUP_TIMEOUT_S = 600


class RuntimeEnvConfig(dict[str, Any]):
    """How a runtime_env is made.

    Args:
        setup_timeout_seconds: how long that may take; -1: any time.
        eager_install: whether it is made before the first call needs it.
        log_files: where its output is written as well.

    Raises:
        TypeError, ValueError: a wrong value.

    Example:
        >>> RuntimeEnvConfig(setup_timeout_seconds=30)["setup_timeout_seconds"]
        30
    """

    known_fields: ClassVar[set[str]] = {
        "setup_timeout_seconds",
        "eager_install",
        "log_files",
    }

    def __init__(
        self,
        setup_timeout_seconds: int = DEFAULT_SETUP_TIMEOUT_S,
        eager_install: bool = True,
        log_files: list[str] | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(setup_timeout_seconds, int):
            raise TypeError(
                "setup_timeout_seconds must be of type int, got: "
                f"{type(setup_timeout_seconds)}"
            )
        if setup_timeout_seconds <= 0 and setup_timeout_seconds != -1:
            raise ValueError(
                "setup_timeout_seconds must be greater than zero or equals to -1, "
                f"got: {setup_timeout_seconds}"
            )
        if not isinstance(eager_install, bool):
            raise TypeError(
                f"eager_install must be a boolean. got {type(eager_install)}"
            )
        if log_files is not None and not isinstance(log_files, list):
            raise TypeError(
                f"log_files must be a list of strings or None, got {type(log_files)}."
            )
        for name in log_files or []:
            if not isinstance(name, str):
                raise TypeError(f"Each item in log_files must be a string, not {name}.")
            if not name.strip(".") or "/" in name or "\0" in name:
                raise ValueError(
                    f"{name!r} in log_files is no name of a file: they are in the "
                    "node's folder of logs, so it must not have a folder"
                )
        self["setup_timeout_seconds"] = setup_timeout_seconds
        self["eager_install"] = eager_install
        self["log_files"] = list(log_files or [])

    @staticmethod
    def parse_and_validate_runtime_env_config(
        config: dict[str, Any] | RuntimeEnvConfig,
    ) -> RuntimeEnvConfig:
        """Make one of a plain dict; unknown entries are ignored with a warning.

        Raises:
            TypeError: ``config`` is no dict.
        """
        if isinstance(config, RuntimeEnvConfig):
            return config
        if not isinstance(config, dict):
            raise TypeError(
                "runtime_env['config'] must be of type dict or RuntimeEnvConfig, got: "
                f"{type(config)}"
            )
        unknown = config.keys() - RuntimeEnvConfig.known_fields
        if unknown:
            logger.warning(
                "runtime_env['config'] has unknown entries, which are ignored: %s",
                sorted(map(str, unknown)),
            )
        return RuntimeEnvConfig(
            **{name: item for name, item in config.items() if name not in unknown}
        )

    @classmethod
    def default_config(cls) -> Self:
        """Return the values that hold when nothing is said."""
        return cls()

    def build_proto_runtime_env_config(self) -> SimpleNamespace:
        """Return the values as attributes of a plain object."""
        return SimpleNamespace(**self)

    @classmethod
    def from_proto(cls, runtime_env_config: Any) -> Self:
        """Make one of an object with the values as attributes; 0 is the default."""
        timeout = runtime_env_config.setup_timeout_seconds
        return cls(
            setup_timeout_seconds=timeout or DEFAULT_SETUP_TIMEOUT_S,
            eager_install=runtime_env_config.eager_install,
            log_files=list(runtime_env_config.log_files),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return a plain dict."""
        return dict(self)


class RuntimeEnv(dict[str, Any]):
    """A checked runtime_env; use it wherever a dict of that kind is accepted.

    Args:
        py_modules: folders, archives or modules that can be imported.
        py_executable: command that runs Python.
        working_dir: folder (or archive) in which the code runs.
        pip: packages, as a list, a requirements file or a dict.
        conda: name or content of an environment.
        container: image and options, as a dict.
        env_vars: environment variables, text to text.
        worker_process_setup_hook: function (or its name) that runs first.
        nsight: options of that profiler.
        rocprof_sys: options of that profiler.
        config: a :class:`RuntimeEnvConfig` or a dict of its values.
        image_uri: image that the code runs in.
        uv: packages, like ``pip``.
        kwargs: further fields, which are kept unchecked.

    Raises:
        TypeError: a field has the wrong type.
        ValueError: a field has a wrong value, or two exclude each other.

    Example:
        >>> RuntimeEnv(env_vars={"MODE": "fast"})
        {'env_vars': {'MODE': 'fast'}}
    """

    known_fields: ClassVar[set[str]] = {
        *("py_modules", "py_executable", "working_dir", "excludes", "env_vars"),
        *("pip", "uv", "conda", "container", "image_uri", "java_jars", "config"),
        *("worker_process_setup_hook", "_nsight", "_rocprof_sys"),
        *("_ray_release", "_ray_commit", "_inject_current_ray"),
    }
    extensions_fields: ClassVar[set[str]] = {
        "_ray_release",
        "_ray_commit",
        "_inject_current_ray",
    }

    def __init__(
        self,
        *,
        py_modules: list[Any] | None = None,
        py_executable: str | None = None,
        working_dir: str | None = None,
        pip: Any = None,
        conda: Any = None,
        container: dict[str, Any] | None = None,
        env_vars: dict[str, str] | None = None,
        worker_process_setup_hook: Any = None,
        nsight: Any = None,
        rocprof_sys: Any = None,
        config: Any = None,
        _validate: bool = True,
        image_uri: str | None = None,
        uv: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__()
        fields = {
            **kwargs,
            "py_modules": py_modules,
            "py_executable": py_executable,
            "working_dir": working_dir,
            "pip": pip,
            "uv": uv,
            "conda": conda,
            "container": container,
            "image_uri": image_uri,
            "env_vars": env_vars,
            "worker_process_setup_hook": worker_process_setup_hook,
            "_nsight": nsight,
            "_rocprof_sys": rocprof_sys,
            "config": config,
        }
        given = {name: value for name, value in fields.items() if value is not None}
        if not _validate:
            self.update(given)
            return
        check_together(given)
        for name, value in given.items():
            self[name] = value

    def __setitem__(self, key: str, value: Any) -> None:
        if key == "config":
            value = RuntimeEnvConfig.parse_and_validate_runtime_env_config(value)
        elif key in CHECKS and value is not None:
            value = CHECKS[key](value)
            if value is None:
                return
        super().__setitem__(key, value)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (dict(self),)

    def set(self, name: str, value: Any) -> None:
        """Set a field; the value is checked. A dataclass is taken as its dict."""
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            value = dataclasses.asdict(value)
        self[name] = value

    def get(self, name: str, default: Any = None, data_class: Any = None) -> Any:
        """Return a field.

        Args:
            name: the field.
            default: what an absent one gives.
            data_class: class that a field of dict form is made into.
        """
        if name not in self:
            return default
        value = self[name]
        if data_class is not None and isinstance(value, dict):
            return data_class(**value)
        return value

    @classmethod
    def deserialize(cls, serialized_runtime_env: str) -> Self:
        """Make one of the text that :meth:`serialize` gives."""
        return cls(_validate=False, **json.loads(serialized_runtime_env))

    def serialize(self) -> str:
        """Return the fields as JSON with sorted keys."""
        return json.dumps(self, sort_keys=True)

    def to_dict(self) -> dict[str, Any]:
        """Return a plain dict, its values shared."""
        return dict(self)

    def get_extension(self, key: str) -> Any:
        """Return one of ``extensions_fields``.

        Raises:
            ValueError: ``key`` is none of them.
        """
        if key not in self.extensions_fields:
            raise ValueError(
                f"Extension key must be one of {sorted(self.extensions_fields)}, got: "
                f"{key}"
            )
        return self.get(key)

    # What follows answers for one field each, with Ray's names.

    def env_vars(self) -> dict[str, str]:
        """Return the environment variables; empty if absent."""
        return dict(self.get("env_vars", {}))

    def has_working_dir(self) -> bool:
        """Return whether there is a working directory."""
        return bool(self.working_dir())

    def working_dir(self) -> str:
        """Return the working directory or URI; empty if absent."""
        return str(self.get("working_dir", ""))

    def working_dir_uri(self) -> str | None:
        """Return the working directory as given."""
        uri: str | None = self.get("working_dir")
        return uri

    def py_modules(self) -> list[Any]:
        """Return the modules; empty if absent."""
        return list(self.get("py_modules", []))

    def py_modules_uris(self) -> list[str]:
        """Return the modules that are named by URI."""
        return [x for x in self.py_modules() if isinstance(x, str) and is_uri(x)]

    def py_executable(self) -> str | None:
        """Return the command that runs Python."""
        command: str | None = self.get("py_executable")
        return command

    def java_jars(self) -> list[str]:
        """Return the Java archives; empty if absent."""
        return list(self.get("java_jars", []))

    def nsight(self) -> Any:
        """Return the options of the profiler."""
        return self.get("_nsight")

    def rocprof_sys(self) -> Any:
        """Return the options of the profiler."""
        return self.get("_rocprof_sys")

    def has_pip(self) -> bool:
        """Return whether pip installs something."""
        return bool(self.get("pip"))

    def pip_config(self) -> dict[str, Any]:
        """Return what pip installs; empty if absent."""
        return dict(self.get("pip", {}))

    def pip_uri(self) -> str | None:
        """Return a name that is the same for equal pip fields."""
        return _field_uri("pip", self.get("pip"))

    def virtualenv_name(self) -> str | None:
        """Return the name of an existing virtual environment; None: a new one."""
        return None

    def has_uv(self) -> bool:
        """Return whether uv installs something."""
        return bool(self.get("uv"))

    def uv_config(self) -> dict[str, Any]:
        """Return what uv installs; empty if absent."""
        return dict(self.get("uv", {}))

    def uv_uri(self) -> str | None:
        """Return a name that is the same for equal uv fields."""
        return _field_uri("uv", self.get("uv"))

    def has_conda(self) -> bool:
        """Return whether there is a conda environment."""
        return bool(self.get("conda"))

    def conda_env_name(self) -> str | None:
        """Return the name of the conda environment, if it is given by name."""
        value = self.get("conda")
        return value if isinstance(value, str) else None

    def conda_config(self) -> str | None:
        """Return the content of the conda environment as JSON, if it is given."""
        value = self.get("conda")
        return json.dumps(value, sort_keys=True) if isinstance(value, dict) else None

    def conda_uri(self) -> str | None:
        """Return a name that is the same for equal contents."""
        value = self.get("conda")
        return _field_uri("conda", value) if isinstance(value, dict) else None

    def image_uri(self) -> str | None:
        """Return the image that the code runs in."""
        uri: str | None = self.get("image_uri")
        return uri

    def has_py_container(self) -> bool:
        """Return whether there is a container."""
        return bool(self.get("container"))

    def py_container_image(self) -> str | None:
        """Return the container's image."""
        image: str | None = self._of_container("image", None)
        return image

    def py_container_worker_path(self) -> str | None:
        """Return the path of the program that runs in the container."""
        path: str | None = self._of_container("worker_path", None)
        return path

    def py_container_run_options(self) -> list[str] | None:
        """Return the options of the command that starts the container."""
        options: list[str] | None = self._of_container("run_options", [])
        return options

    def _of_container(self, name: str, default: Any) -> Any:
        if not self.has_py_container():
            return None
        return self["container"].get(name, default)

    def plugins(self) -> list[tuple[str, Any]]:
        """Return the fields that are not known."""
        return [(key, self[key]) for key in self if key not in self.known_fields]

    def plugin_uris(self) -> list[str]:
        """Return the URIs that further plugins need."""
        return []


def _rebuild(fields: dict[str, Any]) -> RuntimeEnv:
    # Not checked again: the paths of another machine are not here.
    made = RuntimeEnv()
    made.update(fields)
    return made


def _field_uri(kind: str, value: Any) -> str | None:
    if not value:
        return None
    text = json.dumps(value, sort_keys=True)
    return f"{kind}://{hashlib.sha1(text.encode()).hexdigest()}"


def check_runtime_env(value: dict[str, Any]) -> None:
    """Check a runtime_env of a task or an actor.

    Raises:
        TypeError: a field has the wrong type.
        ValueError: a field has a wrong value, or two exclude each other.
    """
    if not isinstance(value, RuntimeEnv):
        RuntimeEnv(**{str(key): item for key, item in value.items()})
