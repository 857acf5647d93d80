"""What all errors have in common."""

from __future__ import annotations

from typing import Any, ClassVar, cast


class RayError(Exception):
    """Base of all errors of this package."""

    def __reduce__(self) -> tuple[Any, ...]:
        return rebuild, (type(self), self.args, dict(self.__dict__))

    def __reduce_ex__(self, protocol: object) -> tuple[Any, ...]:
        # A second base may define its own; __reduce__ above is to win.
        return self.__reduce__()

    def to_bytes(self) -> bytes:
        """Return the error in pickled form, for :meth:`from_bytes`."""
        import cloudpickle

        return cast(bytes, cloudpickle.dumps(self))

    @staticmethod
    def from_bytes(b: bytes) -> Any:
        """Load what :meth:`to_bytes` gave. Only for bytes of a trusted source."""
        import pickle

        return pickle.loads(b)

    @staticmethod
    def from_ray_exception(ray_exception: Any) -> Any:
        """Load the error inside a message with a ``serialized_exception`` field.

        Returns:
            The error; ``CrossLanguageError`` if the field is empty, as in messages
            of code in other languages.
        """
        serialized = getattr(ray_exception, "serialized_exception", b"")
        if serialized:
            return RayError.from_bytes(serialized)
        from .calls import CrossLanguageError

        return CrossLanguageError(ray_exception)


def rebuild(
    cls: type[BaseException], args: tuple[Any, ...], attributes: dict[str, Any]
) -> BaseException:
    error = cls.__new__(cls)
    error.args = args
    error.__dict__.update(attributes)
    return error


class DefaultTextError(RayError):
    """An error that has something to say when it is made without a text."""

    _default_text: ClassVar[str]

    def __str__(self) -> str:
        return super().__str__() if self.args else self._default_text
