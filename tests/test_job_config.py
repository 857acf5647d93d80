from __future__ import annotations

from typing import Any

import pytest

from rayshim.job_config import JobConfig, LoggingConfig


def test_defaults() -> None:
    config = JobConfig()
    assert (config.jvm_options, config.code_search_path) == ([], [])
    assert (config.metadata, config.runtime_env) == ({}, {})
    assert (config.ray_namespace, config.py_logging_config) == (None, None)
    assert config.default_actor_lifetime == "non_detached"


def test_values_can_be_replaced() -> None:
    config = JobConfig(metadata={"a": "b"}, runtime_env={"env_vars": {"x": "y"}})
    config.set_metadata("c", "d")
    config.set_ray_namespace("blue")
    config.set_default_actor_lifetime("detached")
    config.set_runtime_env(None)
    assert config.metadata == {"a": "b", "c": "d"}
    assert config.ray_namespace == "blue"
    assert config.default_actor_lifetime == "detached"
    assert config.runtime_env == {}


def test_runtime_env_is_checked_on_demand() -> None:
    config = JobConfig()
    wrong = {"env_vars": {"a": 1}}
    config.set_runtime_env(wrong)
    assert config.runtime_env == wrong
    with pytest.raises(TypeError, match="env_vars"):
        config.set_runtime_env(wrong, validate=True)


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"default_actor_lifetime": "x"}, ValueError),
        ({"code_search_path": "x"}, TypeError),
        ({"code_search_path": 3}, TypeError),
    ],
)
def test_wrong_values(fields: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        JobConfig(**fields)


def test_from_json_ignores_unknown_names() -> None:
    config = JobConfig.from_json(
        {"metadata": {"a": "b"}, "ray_namespace": "blue", "unknown": 1}
    )
    assert (config.metadata, config.ray_namespace) == ({"a": "b"}, "blue")


def test_logging_config_is_set_once() -> None:
    config = JobConfig()
    config.ensure_logging_config()
    assert config.py_logging_config is None
    config.ensure_logging_config(LoggingConfig(encoding="JSON"))
    config.ensure_logging_config(LoggingConfig())
    assert config.py_logging_config == LoggingConfig(encoding="JSON")
    config.set_py_logging_config(LoggingConfig())
    assert config.py_logging_config == LoggingConfig()


def test_logging_config_round_trips() -> None:
    config = LoggingConfig("JSON", "DEBUG", ["name"])
    assert LoggingConfig.from_dict({**config.to_dict(), "unknown": 1}) == config
    assert LoggingConfig.from_dict({}) == LoggingConfig()


def test_logging_config_refuses_what_it_does_not_know() -> None:
    with pytest.raises(ValueError, match="Invalid encoding type: X"):
        LoggingConfig(encoding="X")
    with pytest.raises(ValueError, match="standard attribute: foo"):
        LoggingConfig(additional_log_standard_attrs=["foo"])
