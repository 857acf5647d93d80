"""The form of each field of a runtime_env: checked, and brought into one shape."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from rayshim._core import sendable

#: Names that a remote archive may end in.
_ARCHIVES = (".zip", ".tar.gz", ".tgz", ".tar.xz")
_MODULE_ARCHIVES = (*_ARCHIVES, ".whl", ".jar")
#: Package managers: keys that their dict form may have.
_MANAGER_KEYS = {
    "pip": ("packages", "pip_check", "pip_install_options", "pip_version"),
    "uv": ("packages", "uv_check", "uv_version", "uv_pip_install_options"),
}


def is_uri(text: str) -> bool:
    """Return whether a text names something remote, as in ``s3://bucket/x.zip``."""
    return "://" in text


def check_env_vars(value: Any) -> dict[str, str] | None:
    """Check ``env_vars``; empty is as good as absent."""
    if not isinstance(value, dict):
        raise TypeError(
            f"runtime_env['env_vars'] must be of type Dict[str, str], got {type(value)}"
        )
    for key, item in value.items():
        for part, text in (("key", key), ("value", item)):
            if not isinstance(text, str):
                raise TypeError(
                    "runtime_env['env_vars'] must be of type Dict[str, str], but the "
                    f"{part} {text!r} is of type {type(text)}"
                )
            sendable.check_text(f"runtime_env['env_vars'] ({part})", text)
            if "\0" in text:
                raise ValueError(
                    f"runtime_env['env_vars']: the {part} {text[:100]!r} has a null "
                    "character, which no environment variable can have"
                )
        if not key or "=" in key:
            raise ValueError(
                f"runtime_env['env_vars']: {key!r} is no name of an environment "
                "variable: it must not be empty, nor have an '='"
            )
    return dict(value) or None


def check_working_dir(value: Any) -> str:
    """Check ``working_dir``: a folder, an archive or a URI of one."""
    if isinstance(value, Path):
        value = str(value)
    if not isinstance(value, str):
        raise TypeError(f"`working_dir` must be a string, got {type(value)}.")
    _check_path_or_uri(value, "working_dir", _ARCHIVES)
    return value


def check_py_modules(value: Any) -> list[Any]:
    """Check ``py_modules``: paths, URIs or module objects."""
    if not isinstance(value, list):
        raise TypeError(f"`py_modules` must be a list of strings, got {type(value)}.")
    modules = []
    for module in value:
        if isinstance(module, Path):
            module = str(module)
        if isinstance(module, str):
            _check_path_or_uri(module, "py_modules", _MODULE_ARCHIVES)
        elif not hasattr(module, "__path__") and not hasattr(module, "__file__"):
            raise TypeError(
                "`py_modules` must be a list of path strings, URIs or modules, got "
                f"{type(module)}."
            )
        modules.append(module)
    return modules


def _check_path_or_uri(text: str, field: str, endings: tuple[str, ...]) -> None:
    if is_uri(text):
        if not text.endswith(endings):
            raise ValueError(
                f"Only {', '.join(endings)} files are supported for {field} URIs; got "
                f"{text}."
            )
    elif not Path(text).expanduser().exists():
        raise ValueError(f"{text} is not a valid path (field {field}).")


def check_excludes(value: Any) -> list[str] | None:
    """Check ``excludes``: patterns as in a .gitignore file."""
    if not isinstance(value, list) or not all(isinstance(x, str) for x in value):
        raise TypeError(
            f"runtime_env['excludes'] must be of type List[str], got {type(value)}"
        )
    return value or None


def check_packages(manager: str, value: Any) -> dict[str, Any] | None:
    """Bring ``pip`` or ``uv`` into dict form; None if there is nothing to install."""
    field = f"runtime_env['{manager}']"
    if isinstance(value, (str, Path)):
        value = {"packages": _requirements(Path(value))}
    elif isinstance(value, list):
        value = {"packages": value}
    elif not isinstance(value, dict):
        raise TypeError(f"{field} must be of type str or List[str], got {type(value)}")
    known = _MANAGER_KEYS[manager]
    unknown = sorted(map(str, set(value) - set(known)))
    if unknown:
        raise ValueError(
            f"{field} can only have these fields: {', '.join(known)}, but got: "
            f"{unknown}"
        )
    packages = value.get("packages")
    if isinstance(packages, str):
        packages = _requirements(Path(packages))
    if not isinstance(packages, list):
        raise ValueError(f"{field} must include field 'packages' with a list")
    if not all(isinstance(package, str) for package in packages):
        raise TypeError(f"{field}['packages'] must be a list of text, got {packages}")
    packages = list(dict.fromkeys(packages))
    if not packages:
        return None
    checked = {"packages": packages, f"{manager}_check": False}
    return checked | {key: item for key, item in value.items() if key != "packages"}


def _requirements(path: Path) -> list[str]:
    if not path.is_file():
        raise ValueError(f"{path} is not a valid file")
    lines = (line.strip() for line in path.read_text().splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def check_conda(value: Any) -> Any:
    """Check ``conda``: name of an environment, path of a YAML file, or its content."""
    if isinstance(value, Path):
        value = str(value)
    if not isinstance(value, (str, dict)):
        raise TypeError(
            f"runtime_env['conda'] must be of type str or dict, got {type(value)}."
        )
    if isinstance(value, str) and value.endswith((".yml", ".yaml")):
        if not Path(value).is_file():
            raise ValueError(f"Can't find conda YAML file {value}.")
    return value or None


def check_text(field: str, value: Any) -> str:
    """Check a field that is a text."""
    if not isinstance(value, str):
        raise TypeError(
            f"runtime_env['{field}'] must be of type str, got {type(value)}"
        )
    return value


#: Field -> what checks it and gives it in its one shape; None leaves the field out.
CHECKS: dict[str, Callable[[Any], Any]] = {
    "env_vars": check_env_vars,
    "working_dir": check_working_dir,
    "py_modules": check_py_modules,
    "excludes": check_excludes,
    "pip": lambda value: check_packages("pip", value),
    "uv": lambda value: check_packages("uv", value),
    "conda": check_conda,
    "py_executable": lambda value: check_text("py_executable", value),
    "image_uri": lambda value: check_text("image_uri", value),
}


def check_together(fields: dict[str, Any]) -> None:
    """Check that the fields of one runtime_env do not exclude each other.

    Raises:
        ValueError: two ways of installing packages, or an image with more than
            ``config`` and ``env_vars``.
    """
    managers = [name for name in ("pip", "uv", "conda") if fields.get(name)]
    if len(managers) > 1:
        raise ValueError(
            "The 'pip' field, 'uv' field, and 'conda' field of runtime_env cannot be "
            f"specified at the same time, but {' and '.join(managers)} are. With "
            "conda, list the pip packages inside of its dependencies."
        )
    for image in ("container", "image_uri"):
        if fields.get(image):
            others = {
                name
                for name, value in fields.items()
                if value and name not in (image, "config", "env_vars", "_validate")
            }
            if others:
                raise ValueError(
                    f"The '{image}' field currently cannot be used together with "
                    f"other fields of runtime_env. Specified fields: {sorted(others)}"
                )
