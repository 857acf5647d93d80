"""What `up` stamps, keeps and waits for, without a cluster."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import pytest

from platforms import example_platform, small_platform
from rayshim.k8s.api import Unreachable
from rayshim.k8s.differences import Difference, State
from rayshim.k8s.failures import ClusterRefuses
from rayshim.k8s.installing import refuse_foreign
from rayshim.k8s.reaching import place_of
from rayshim.k8s.rendering.secrets import filled, secrets
from rayshim.k8s.secret_keeping import lacking
from rayshim.k8s.stamping import SECRETS, SPEC, is_older, stamped, stamps_of
from rayshim.k8s.waiting import Waiting


def worker_group(image: str) -> dict[str, Any]:
    worker = {"replicas": 0, "spec": {"image": image, "secretName": "token"}}
    return {
        "kind": "DaskWorkerGroup",
        "metadata": {"name": "g"},
        "spec": {"worker": worker},
    }


def token(text: str) -> dict[str, Any]:
    return {"metadata": {"name": "token"}, "data": {"token": text}}


def test_pods_are_stamped_with_what_they_are_made_from() -> None:
    (first,) = stamped([worker_group("a")], [token("1")])
    (same,) = stamped([worker_group("a")], [token("1")])
    (image,) = stamped([worker_group("b")], [token("1")])
    (rotated,) = stamped([worker_group("a")], [token("2")])

    workers = [one["spec"]["worker"] for one in (first, same, image, rotated)]
    assert set(stamps_of(workers[0])) == {SPEC, SECRETS}
    assert not is_older(workers[0], workers[1])
    assert is_older(workers[0], workers[2])
    assert is_older(workers[0], workers[3])


def test_the_number_of_workers_is_no_part_of_the_stamp() -> None:
    more = worker_group("a")
    more["spec"]["worker"]["replicas"] = 3
    (one,), (other,) = stamped([worker_group("a")], []), stamped([more], [])

    assert stamps_of(one["spec"]["worker"]) == stamps_of(other["spec"]["worker"])


def test_pods_that_others_made_count_as_current() -> None:
    (made,) = stamped([worker_group("a")], [])

    assert not is_older({"metadata": {}, "spec": {}}, made["spec"]["worker"])


def state_secret() -> dict[str, Any]:
    platform = example_platform()
    return next(
        one for one in secrets(platform) if one["metadata"]["name"] == "demo-state"
    )


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def test_a_secret_that_is_whole_stays() -> None:
    platform = example_platform()
    for secret in secrets(platform):
        found = filled(secret, platform, lambda count: b"\1" * count)
        assert lacking(secret, found, platform) == {}


def test_what_follows_from_a_rotated_password_is_brought_in_line() -> None:
    platform = example_platform()
    found = filled(state_secret(), platform, lambda count: b"\1" * count)
    found["data"]["password"] = encoded("new-one")

    change = lacking(state_secret(), found, platform)

    assert set(change) == {"url", "valkey.conf"}
    assert change["valkey.conf"] == encoded("requirepass new-one\n")


def test_an_empty_secret_is_filled() -> None:
    platform = example_platform()

    change = lacking(state_secret(), state_secret(), platform)

    assert set(change) == {"password", "url", "valkey.conf"}


def test_a_password_that_would_need_escaping_is_refused() -> None:
    found = {"data": {"password": encoded("a b@c\n")}}

    with pytest.raises(ClusterRefuses, match="letters, digits"):
        lacking(state_secret(), found, example_platform())


def test_foreign_objects_are_all_named() -> None:
    rows = [
        Difference("Role", "a", "ns", State.FOREIGN, note="managed by Helm"),
        Difference("NodePool", "b", "", State.FOREIGN),
        Difference("Role", "c", "ns", State.CREATED),
    ]

    with pytest.raises(ClusterRefuses) as refused:
        refuse_foreign(rows, small_platform())

    lines = str(refused.value).splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("Role a in ns is not of platform")
    assert "managed by Helm" in lines[0]


class Time:
    """A clock that sleeping moves."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


def waiting(limit_s: float) -> tuple[Waiting, Time]:
    clock = Time()
    return Waiting(limit_s, clock=clock, sleep=clock.sleep), clock


def test_one_limit_holds_for_several_waits() -> None:
    both, clock = waiting(10.0)

    assert not both.until(lambda: False, limit_s=4.0)
    assert clock.now_s == pytest.approx(4.0)
    assert not both.until(lambda: False)
    assert clock.now_s == pytest.approx(10.0)
    assert both.until(lambda: True)


def test_a_server_that_is_away_for_a_while_is_waited_for() -> None:
    found, clock = waiting(10.0)
    assert found.until(answering(lambda: clock.now_s > 3))


def test_a_server_that_stays_away_is_told() -> None:
    found, _ = waiting(10.0)
    with pytest.raises(Unreachable):
        found.until(answering(lambda: False))


def answering(condition: Callable[[], bool]) -> Callable[[], bool]:
    def ask() -> bool:
        if not condition():
            raise Unreachable("away")
        return True

    return ask


@pytest.mark.parametrize(
    ("head", "place"),
    [
        (None, (None, None)),
        ("h", ("h", None)),
        ("h:1", ("h", 1)),
        ("[::1]", ("::1", None)),
        ("[::1]:2", ("::1", 2)),
    ],
)
def test_where_the_head_is(head: str | None, place: tuple[Any, Any]) -> None:
    assert place_of(head) == place


def test_a_port_that_is_no_number_is_refused() -> None:
    with pytest.raises(ValueError, match="HOST"):
        place_of("h:x")
