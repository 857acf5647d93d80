from __future__ import annotations

import io
import pickle
import threading

import cloudpickle as library
import pytest

from rayshim import cloudpickle


def test_functions_travel_by_value() -> None:
    factor = 3
    data = cloudpickle.dumps(lambda x: x * factor)
    assert pickle.loads(data)(2) == 6


def test_names_are_those_of_the_library() -> None:
    for name in ("dumps", "dump", "loads", "load", "CloudPickler"):
        assert getattr(cloudpickle, name) is getattr(library, name)


def test_debug_functions_work_and_explain() -> None:
    file = io.BytesIO()
    cloudpickle.dump_debug([1], file)
    assert cloudpickle.loads(file.getvalue()) == [1]
    assert cloudpickle.loads(cloudpickle.dumps_debug([1])) == [1]
    with pytest.raises(TypeError, match=r"element 0 -> _thread\.lock"):
        cloudpickle.dumps_debug([threading.Lock()])
    with pytest.raises(TypeError, match=r"element 0 -> _thread\.lock"):
        cloudpickle.dump_debug([threading.Lock()], io.BytesIO())
