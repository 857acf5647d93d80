from __future__ import annotations

import json
import logging
import pickle
from pathlib import Path
from typing import Any

import pytest

from rayshim._core import runtime_env_merge
from rayshim.runtime_env import RuntimeEnv, RuntimeEnvConfig, check_runtime_env


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, {}),
        ({"env_vars": {"a": "b"}}, {"env_vars": {"a": "b"}}),
        ({"env_vars": {}, "pip": [], "conda": None}, {}),
        ({"pip": ["x", "x"]}, {"pip": {"packages": ["x"], "pip_check": False}}),
        ({"uv": ["x"]}, {"uv": {"packages": ["x"], "uv_check": False}}),
        (
            {"pip": {"packages": ["x"], "pip_check": True}},
            {"pip": {"packages": ["x"], "pip_check": True}},
        ),
        ({"conda": "name"}, {"conda": "name"}),
        ({"working_dir": "s3://b/x.zip"}, {"working_dir": "s3://b/x.zip"}),
        ({"working_dir": "."}, {"working_dir": "."}),
        ({"nsight": "default"}, {"_nsight": "default"}),
        ({"unknown": 1}, {"unknown": 1}),
        ({"_validate": False, "env_vars": 3}, {"env_vars": 3}),
        (
            {"config": {"setup_timeout_seconds": 3}},
            {
                "config": {
                    "setup_timeout_seconds": 3,
                    "eager_install": True,
                    "log_files": [],
                }
            },
        ),
    ],
)
def test_fields_are_brought_into_one_shape(
    fields: dict[str, Any], expected: dict[str, Any]
) -> None:
    assert RuntimeEnv(**fields) == expected


@pytest.mark.parametrize(
    ("fields", "error", "text"),
    [
        ({"env_vars": {"a": 1}}, TypeError, "the value 1 is of type"),
        ({"env_vars": {1: "a"}}, TypeError, "the key 1 is of type"),
        ({"env_vars": 3}, TypeError, "env_vars"),
        ({"pip": 3}, TypeError, "must be of type str or List"),
        ({"pip": [3]}, TypeError, "packages"),
        ({"pip": "missing.txt"}, ValueError, "not a valid file"),
        ({"pip": {"foo": 1}}, ValueError, "can only have these fields"),
        ({"conda": 3}, TypeError, "conda"),
        ({"conda": "missing.yaml"}, ValueError, "Can't find conda YAML"),
        ({"pip": ["x"], "conda": "e"}, ValueError, "cannot be specified at the same"),
        ({"pip": ["x"], "uv": ["y"]}, ValueError, "cannot be specified at the same"),
        ({"working_dir": "/missing"}, ValueError, "/missing is not a valid path"),
        ({"working_dir": 3}, TypeError, "must be a string"),
        ({"working_dir": "s3://b/x"}, ValueError, "files are supported for"),
        ({"py_modules": 3}, TypeError, "must be a list of strings"),
        ({"py_modules": ["/missing"]}, ValueError, "not a valid path"),
        ({"py_modules": [3]}, TypeError, "py_modules"),
        ({"excludes": 3}, TypeError, "excludes"),
        ({"py_executable": 3}, TypeError, "py_executable"),
        (
            {"image_uri": "x", "pip": ["a"]},
            ValueError,
            "cannot be used together with other fields",
        ),
        ({"env_vars": {"": "x"}}, ValueError, "no name of an environment variable"),
        ({"env_vars": {"A=B": "x"}}, ValueError, "no name of an environment variable"),
        ({"env_vars": {"A": "x\0"}}, ValueError, "null character"),
        ({"env_vars": {"A\0": "x"}}, ValueError, "null character"),
        ({"env_vars": {"A": "\udcff"}}, ValueError, "UTF-8 can hold"),
        ({"config": 3}, TypeError, "config"),
        ({"config": {"setup_timeout_seconds": 0}}, ValueError, "greater than zero"),
    ],
)
def test_wrong_fields_are_refused(
    fields: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        RuntimeEnv(**fields)
    with pytest.raises(error, match=text):
        check_runtime_env(fields)


def test_requirements_may_be_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "requirements.txt"
    path.write_text("# tools\nx==1\n\n  y\n")
    expected = {"packages": ["x==1", "y"], "pip_check": False}
    assert RuntimeEnv(pip=str(path)).pip_config() == expected
    assert RuntimeEnv(pip={"packages": str(path)}).pip_config() == expected


def test_fields_are_checked_when_set_too() -> None:
    env = RuntimeEnv(env_vars={"a": "b"})
    env.set("env_vars", {"c": "d"})
    env["other"] = 3
    assert env == {"env_vars": {"c": "d"}, "other": 3}
    with pytest.raises(TypeError, match="env_vars"):
        env.set("env_vars", {"c": 1})
    with pytest.raises(TypeError, match="env_vars"):
        env["env_vars"] = {"c": 1}


def test_text_form_round_trips() -> None:
    env = RuntimeEnv(env_vars={"a": "b"}, pip=["x"], other=2)
    assert env.serialize() == (
        '{"env_vars": {"a": "b"}, "other": 2, '
        '"pip": {"packages": ["x"], "pip_check": false}}'
    )
    assert RuntimeEnv.deserialize(env.serialize()) == env
    assert json.loads(json.dumps(env)) == env.to_dict()


def test_pickle_keeps_the_class_and_checks_no_paths(tmp_path: Path) -> None:
    folder = tmp_path / "code"
    folder.mkdir()
    data = pickle.dumps(RuntimeEnv(working_dir=str(folder)))
    folder.rmdir()
    twin = pickle.loads(data)
    assert type(twin) is RuntimeEnv
    assert twin.working_dir() == str(folder)


def test_absent_fields_answer_like_empty_ones() -> None:
    env = RuntimeEnv()
    assert (env.env_vars(), env.py_modules(), env.java_jars()) == ({}, [], [])
    assert (env.pip_config(), env.uv_config(), env.working_dir()) == ({}, {}, "")
    for name in ("has_pip", "has_uv", "has_conda", "has_working_dir"):
        assert getattr(env, name)() is False
    assert env.has_py_container() is False
    for name in ("pip_uri", "uv_uri", "conda_uri", "conda_env_name", "conda_config"):
        assert getattr(env, name)() is None
    for name in ("image_uri", "nsight", "rocprof_sys", "py_executable"):
        assert getattr(env, name)() is None
    for name in ("image", "worker_path", "run_options"):
        assert getattr(env, f"py_container_{name}")() is None
    assert env.virtualenv_name() is None
    assert env.working_dir_uri() is None


def test_fields_answer_for_themselves() -> None:
    assert RuntimeEnv(conda="name").conda_env_name() == "name"
    env = RuntimeEnv(conda={"dependencies": ["x"]})
    assert env.conda_config() == '{"dependencies": ["x"]}'
    assert env.conda_uri() == "conda://417233428973e29aa250dd33b4a8f56fad0adbf7"
    env = RuntimeEnv(container={"image": "i", "worker_path": "w"})
    assert (env.py_container_image(), env.py_container_worker_path()) == ("i", "w")
    assert env.py_container_run_options() == []
    env = RuntimeEnv(working_dir=".", py_modules=["s3://a/b.zip", "."], other=2)
    assert env.working_dir_uri() == "."
    assert env.py_modules_uris() == ["s3://a/b.zip"]
    assert (env.plugins(), env.plugin_uris()) == ([("other", 2)], [])
    assert RuntimeEnv(pip=["x"]).pip_uri() == (
        "pip://5644088dfcf44ef3f97c740e49235ff90e2fceef"
    )


def test_get_makes_classes_of_dicts() -> None:
    env = RuntimeEnv(config={"setup_timeout_seconds": 3})
    assert env.get("missing") is None
    assert env.get("missing", 3) == 3
    assert isinstance(env.get("config", data_class=RuntimeEnvConfig), RuntimeEnvConfig)


def test_extensions_are_few() -> None:
    assert RuntimeEnv(_ray_commit="c").get_extension("_ray_commit") == "c"
    with pytest.raises(ValueError, match="Extension key"):
        RuntimeEnv().get_extension("pip")


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"setup_timeout_seconds": "x"}, TypeError),
        ({"setup_timeout_seconds": -2}, ValueError),
        ({"eager_install": 3}, TypeError),
        ({"log_files": "x"}, TypeError),
        ({"log_files": [1]}, TypeError),
        ({"log_files": ["../x"]}, ValueError),
        ({"log_files": ["/x"]}, ValueError),
        ({"log_files": ["a", ".."]}, ValueError),
        ({"log_files": [""]}, ValueError),
    ],
)
def test_wrong_values_of_the_config(
    fields: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        RuntimeEnvConfig(**fields)


def test_config_defaults_and_conversions() -> None:
    config = RuntimeEnvConfig.default_config()
    assert config.to_dict() == {
        "setup_timeout_seconds": 600,
        "eager_install": True,
        "log_files": [],
    }
    proto = config.build_proto_runtime_env_config()
    assert RuntimeEnvConfig.from_proto(proto) == config
    parse = RuntimeEnvConfig.parse_and_validate_runtime_env_config
    assert parse(config) is config


def test_unknown_entries_of_the_config_are_ignored(
    caplog: pytest.LogCaptureFixture,
) -> None:
    parse = RuntimeEnvConfig.parse_and_validate_runtime_env_config
    with caplog.at_level(logging.WARNING):
        assert parse({"foo": 1}) == RuntimeEnvConfig()
    assert "foo" in caplog.text


def test_a_field_that_no_node_builds_is_told_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime_env_merge, "_warned", set())
    monkeypatch.setattr(logging.getLogger("rayshim"), "propagate", True)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            runtime_env_merge.runtime_env_fields({"pipp": ["x"], "excludes": []})
    (record,) = caplog.records
    assert "'pipp'" in record.getMessage() and "'pip'?" in record.getMessage()
