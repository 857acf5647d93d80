"""Calls of other languages, which rayshim does not have: every function says so."""

from __future__ import annotations

import enum
from typing import NoReturn


class Language(enum.Enum):
    """Languages of remote functions; rayshim's are all in Python."""

    PYTHON = 0
    JAVA = 1
    CPP = 2


def _refuse(name: str) -> NoReturn:
    raise NotImplementedError(
        f"ray.{name}() is not supported: rayshim runs Python only. Call the other "
        "language from a Python function (JPype, pybind11, a subprocess)."
    )


def java_function(class_name: str, function_name: str) -> NoReturn:
    """Not supported.

    Args:
        class_name: of the Java class.
        function_name: of its static method.

    Raises:
        NotImplementedError: always; it says what to do instead.
    """
    _refuse("java_function")


def java_actor_class(class_name: str) -> NoReturn:
    """Not supported.

    Args:
        class_name: of the Java class.

    Raises:
        NotImplementedError: always; it says what to do instead.
    """
    _refuse("java_actor_class")


def cpp_function(function_name: str) -> NoReturn:
    """Not supported.

    Args:
        function_name: of the C++ function.

    Raises:
        NotImplementedError: always; it says what to do instead.
    """
    _refuse("cpp_function")
