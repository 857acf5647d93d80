"""Exceptions in methods: what the caller sees and what the actor survives."""

from __future__ import annotations

import pytest

import ray
from ray import cloudpickle
from ray.exceptions import RayError, RayTaskError, TaskCancelledError

pytestmark = pytest.mark.usefixtures("ray_start")


class CustomError(Exception):
    """An exception with data of its own."""

    def __init__(self, message, code):
        super().__init__(message, code)
        self.code = code


@ray.remote
class Faulty:
    def __init__(self):
        self.calls = 0

    def fail(self, text="boom"):
        self.calls += 1
        raise ValueError(text)

    def custom(self):
        raise CustomError("custom", 42)

    def chained(self):
        try:
            1 / 0  # noqa: B018
        except ZeroDivisionError as error:
            raise ValueError("outer") from error

    def key(self):
        return {}["missing"]

    def deep(self):
        return ray.get(broken.remote())

    def interrupt(self):
        raise KeyboardInterrupt

    def stop(self):
        raise StopIteration("done")

    def assertion(self):
        assert self.calls == -1, "calls"

    def count(self, *_):
        return self.calls

    def catch(self):
        try:
            ray.get(broken.remote())
        except ZeroDivisionError as error:
            return type(error).__name__, type(error.cause).__name__

    def return_error(self):
        return ValueError("as a value")


@ray.remote
def broken():
    return 1 / 0


@pytest.fixture
def faulty():
    return Faulty.remote()


def test_exception_is_a_task_error_and_the_users_type(faulty):
    with pytest.raises(ValueError, match="boom") as caught:
        ray.get(faulty.fail.remote())
    assert isinstance(caught.value, RayTaskError)
    assert isinstance(caught.value, RayError)
    assert type(caught.value).__name__ == "RayTaskError(ValueError)"


def test_error_text_names_the_method_and_ends_with_the_cause(faulty):
    with pytest.raises(ValueError) as caught:
        ray.get(faulty.fail.remote("the text"))
    text = str(caught.value)
    assert "ray::Faulty.fail()" in text.splitlines()[0]
    assert "pid=" in text.splitlines()[0]
    assert "actor_id=" in text.splitlines()[0]
    assert text.rstrip().endswith("ValueError: the text")


def test_error_carries_its_cause(faulty):
    with pytest.raises(CustomError) as caught:
        ray.get(faulty.custom.remote())
    assert isinstance(caught.value.cause, CustomError)
    assert caught.value.cause.code == 42


def test_chained_exceptions_are_in_the_text(faulty):
    with pytest.raises(ValueError) as caught:
        ray.get(faulty.chained.remote())
    text = str(caught.value)
    assert "ZeroDivisionError: division by zero" in text
    assert "direct cause" in text
    assert isinstance(caught.value.cause, ValueError)


def test_actor_survives_and_keeps_state(faulty):
    for _ in range(3):
        with pytest.raises(ValueError):
            ray.get(faulty.fail.remote())
    assert ray.get(faulty.count.remote()) == 3


@pytest.mark.parametrize(
    ("method", "kind"),
    [
        ("key", KeyError),
        ("assertion", AssertionError),
        ("deep", ZeroDivisionError),
    ],
)
def test_other_exceptions_keep_their_type(faulty, method, kind):
    with pytest.raises(kind):
        ray.get(getattr(faulty, method).remote())
    assert ray.get(faulty.count.remote()) == 0


def test_stop_iteration_in_a_method_is_an_error_of_the_call(faulty):
    with pytest.raises(RayTaskError):
        ray.get(faulty.stop.remote())
    assert ray.get(faulty.count.remote()) == 0


def test_error_of_a_task_inside_a_method_can_be_caught_there(faulty):
    assert ray.get(faulty.catch.remote()) == (
        "RayTaskError(ZeroDivisionError)",
        "ZeroDivisionError",
    )


def test_keyboard_interrupt_in_a_method_is_a_cancellation(faulty):
    with pytest.raises(TaskCancelledError):
        ray.get(faulty.interrupt.remote())
    assert ray.get(faulty.count.remote()) == 0


def test_exception_as_a_return_value_is_just_a_value(faulty):
    value = ray.get(faulty.return_error.remote())
    assert type(value) is ValueError
    assert value.args == ("as a value",)


def test_failed_argument_fails_the_call_without_running_it(faulty):
    ref = faulty.count.remote(broken.remote())
    with pytest.raises(ZeroDivisionError) as caught:
        ray.get(ref)
    assert "ray::Faulty.count()" in str(caught.value).splitlines()[0]


def test_failed_argument_nested_in_a_list_does_not_stop_the_call(faulty):
    assert ray.get(faulty.count.remote([broken.remote()])) == 0


def test_error_passes_through_a_chain_of_actors(faulty):
    other = Faulty.remote()
    ref = other.count.remote(faulty.fail.remote("first"))
    with pytest.raises(ValueError, match="first"):
        ray.get(ref)


def test_get_of_a_list_raises_the_first_error(faulty):
    refs = [faulty.count.remote(), faulty.fail.remote("one"), faulty.key.remote()]
    with pytest.raises(ValueError, match="one"):
        ray.get(refs)


def test_failed_call_counts_as_ready_for_wait(faulty):
    ref = faulty.fail.remote()
    assert ray.wait([ref], timeout=20) == ([ref], [])


def test_task_error_can_be_pickled_by_value(faulty):
    with pytest.raises(ValueError) as caught:
        ray.get(faulty.fail.remote("again"))
    copy = cloudpickle.loads(cloudpickle.dumps(caught.value))
    assert "again" in str(copy)


def test_task_error_can_be_sent_to_a_task(faulty):
    @ray.remote
    def name_of(errors):
        return type(errors[0]).__name__, "boom" in str(errors[0])

    with pytest.raises(ValueError) as caught:
        ray.get(faulty.fail.remote())
    assert ray.get(name_of.remote([caught.value]))[1]


def test_as_instanceof_cause_gives_the_dual_type(faulty):
    with pytest.raises(RayTaskError) as caught:
        ray.get(faulty.fail.remote())
    assert isinstance(caught.value.as_instanceof_cause(), ValueError)


def test_custom_repr_shows_in_the_error_text():
    @ray.remote
    class Named:
        def __repr__(self):
            return "Named(blue)"

        def fail(self):
            raise ValueError("x")

    with pytest.raises(ValueError, match=r"repr=Named\(blue\)"):
        ray.get(Named.remote().fail.remote())


def test_method_retries_application_errors_when_asked():
    @ray.remote
    class Flaky:
        def __init__(self):
            self.calls = 0

        @ray.method(max_task_retries=2, retry_exceptions=True)
        def third_time(self):
            self.calls += 1
            if self.calls < 3:
                raise ValueError(self.calls)
            return self.calls

        def count(self):
            return self.calls

    flaky = Flaky.remote()
    assert ray.get(flaky.third_time.remote()) == 3
    assert ray.get(flaky.count.remote()) == 3


def test_retry_exceptions_list_is_a_filter():
    @ray.remote
    class Flaky:
        def __init__(self):
            self.calls = 0

        def fail(self):
            self.calls += 1
            raise ValueError(self.calls)

        def count(self):
            return self.calls

    flaky = Flaky.remote()
    other = flaky.fail.options(max_task_retries=1, retry_exceptions=[KeyError])
    with pytest.raises(ValueError, match="1"):
        ray.get(other.remote())
    same = flaky.fail.options(max_task_retries=1, retry_exceptions=[ValueError])
    with pytest.raises(ValueError, match="3"):
        ray.get(same.remote())
    assert ray.get(flaky.count.remote()) == 3


def test_max_task_retries_alone_does_not_retry_application_errors():
    actor = Faulty.options(max_task_retries=3).remote()
    with pytest.raises(ValueError):
        ray.get(actor.fail.remote())
    assert ray.get(actor.count.remote()) == 1
