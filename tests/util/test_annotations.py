from __future__ import annotations

from typing import Any

import pytest

from rayshim.util.annotations import (
    AnnotationType,
    Deprecated,
    DeveloperAPI,
    PublicAPI,
    RayDeprecationWarning,
)


def test_marks_leave_the_function_as_it_is() -> None:
    def plain() -> int:
        """Text."""
        return 3

    marked: Any = PublicAPI(plain)
    assert marked is plain
    assert marked() == 3
    assert (marked._annotated, marked.__doc__) == ("plain", "Text.")
    assert marked._annotated_type is AnnotationType.PUBLIC_API


def test_unstable_names_say_so() -> None:
    @PublicAPI(stability="beta", api_group="Group")
    def beta() -> None: ...

    @DeveloperAPI
    class Developer: ...

    assert "PublicAPI (beta)" in beta.__doc__
    assert beta._annotated_api_group == "Group"
    assert "DeveloperAPI" in Developer.__doc__
    with pytest.raises(AssertionError):
        PublicAPI(stability="unknown")


@pytest.mark.filterwarnings("error")
def test_deprecated_names_warn_on_demand() -> None:
    @Deprecated
    def quiet() -> int:
        return 1

    @Deprecated(message="Use x.", warning=True)
    def loud() -> int:
        return 2

    @Deprecated(message="Use X.", warning=True)
    class Loud: ...

    assert quiet() == 1
    with pytest.warns(RayDeprecationWarning, match="Use x"):
        assert loud() == 2
    with pytest.warns(RayDeprecationWarning, match="Use X"):
        assert isinstance(Loud(), Loud)
    assert "DEPRECATED" in loud.__doc__
