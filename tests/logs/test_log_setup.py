"""Lines of the log: text or JSON, with where they come from."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest

from rayshim import LoggingConfig
from rayshim._core import log_setup
from rayshim._core.init_options import InitOptions
from rayshim.job_config import JobConfig


@pytest.fixture(autouse=True)
def loggers_as_before() -> Iterator[None]:
    kept = [
        (logger, logger.level, list(logger.handlers), logger.propagate)
        for logger in (logging.getLogger(), logging.getLogger("rayshim"))
    ]
    yield
    for logger, level, handlers, propagate in kept:
        logger.setLevel(level)
        logger.handlers[:] = handlers
        logger.propagate = propagate


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().err.splitlines()


def test_json_lines_are_objects(capsys: pytest.CaptureFixture[str]) -> None:
    log_setup.apply(LoggingConfig(encoding="JSON").to_dict())
    logging.getLogger("x").info("a %s", "b", extra={"n": 1, "odd": object})
    (line,) = lines(capsys)
    record = json.loads(line)
    assert record["message"] == "a b" and record["n"] == 1
    assert "object" in record["odd"]


def test_a_line_of_json_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    log_setup.apply(LoggingConfig(encoding="JSON").to_dict())
    try:
        raise ValueError("two\nlines")
    except ValueError:
        logging.exception("three\nlines")
    (line,) = lines(capsys)
    assert "two\nlines" in json.loads(line)["exc_text"]


def test_text_lines(capsys: pytest.CaptureFixture[str]) -> None:
    config = LoggingConfig(additional_log_standard_attrs=["funcName"])
    log_setup.apply(config.to_dict())
    logging.getLogger("x").warning("words", extra={"n": 1})
    (line,) = lines(capsys)
    assert " -- words funcName=test_text_lines n=1 timestamp_ns=" in line


def test_levels_count(capsys: pytest.CaptureFixture[str]) -> None:
    log_setup.apply(LoggingConfig(log_level="ERROR").to_dict())
    logging.getLogger("x").warning("no")
    logging.getLogger("x").error("yes")
    assert len(lines(capsys)) == 1


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(ValueError, match="LOUD"):
        log_setup.apply(LoggingConfig(log_level="LOUD").to_dict())


def test_lines_are_written_once(capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        log_setup.apply(LoggingConfig().to_dict())
    logging.getLogger("rayshim.x").info("once")
    assert len(lines(capsys)) == 1


def test_init_takes_a_configuration() -> None:
    options = InitOptions.validate(logging_config=LoggingConfig(encoding="JSON"))
    assert options.job_setup["logging"]["encoding"] == "JSON"


def test_a_job_config_may_have_it() -> None:
    config = JobConfig()
    config.set_py_logging_config(LoggingConfig(log_level="DEBUG"))
    options = InitOptions.validate(job_config=config)
    assert options.job_setup["logging"]["log_level"] == "DEBUG"


def test_something_else_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match="logging_config must be a LoggingConfig"):
        InitOptions.validate(logging_config={"encoding": "JSON"})


@pytest.mark.parametrize("hook", ["module", 5, "a:b:c"])
def test_a_tracing_hook_is_module_and_function(hook: object) -> None:
    with pytest.raises(ValueError, match="module:function"):
        InitOptions.validate(_tracing_startup_hook=hook)
