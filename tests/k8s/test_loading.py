"""platform.yaml: what it may say, and what is refused, with path and next step."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
import yaml
from dask_kubernetes import constants
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rayshim.k8s import consistency
from rayshim.k8s.config import Accelerator, ConfigError, Halving
from rayshim.k8s.cost import monthly_costs
from rayshim.k8s.loading import load_platform, parse_platform
from rayshim.k8s.reading import merged
from rayshim.k8s.sizing import explain

DEPLOY = Path(__file__).parents[2] / "k8s" / "deploy"
EXAMPLE = DEPLOY / "platform.yaml"

SMALL = """
name: demo
namespace: ray
region: us-east-1
zones: [us-east-1a]
images: {cpu: "example.com/rayshim:1.0"}
groups:
  cpu: {shape: {cpus: 2, memory: 4Gi}}
"""


def changed(**paths: Any) -> str:
    """The example with values at other paths; ``__`` parts keys, None removes one."""
    values = yaml.safe_load(EXAMPLE.read_text())
    for path, value in paths.items():
        *keys, last = path.split("__")
        inner = values
        for key in keys:
            inner = inner.setdefault(key, {})
        if value is None:
            inner.pop(last)
        else:
            inner[last] = value
    return yaml.safe_dump(values, sort_keys=False)


def at(path: str, value: Any) -> str:
    """The example with one value changed; keys are parted by ``/``."""
    return changed(**{path.replace("/", "__"): value})


def refusal(text: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        parse_platform(text)
    return caught.value


def test_the_example_is_read_as_written() -> None:
    platform = load_platform(EXAMPLE)
    assert [one.name for one in platform.groups] == [
        "cpu-ingest",
        "gpu-train",
        "gpu-serve",
    ]
    train = platform.group("gpu-train")
    assert (train.min, train.max, train.warm) == (0, 8, 0)
    assert train.accelerator == Accelerator("L40S", 1, "nvidia.com/gpu")
    assert train.memory_gib == 112.0
    assert train.is_gang
    assert platform.queues[1].quota["nvidia.com/gpu"] == 8.0
    assert platform.queues[1].quota["memory"] == 896 * 2**30
    assert platform.tune is not None
    assert platform.tune.halving == (Halving(3, 9), Halving(2, 8))
    assert platform.source == str(EXAMPLE)


def test_what_is_left_out_has_its_default() -> None:
    platform = parse_platform(SMALL)
    assert platform.images.gpu == "example.com/rayshim:1.0"
    assert platform.eks_cluster == "demo"
    assert platform.head.state.kind == "valkey"
    assert (platform.group("cpu").max, platform.group("cpu").idle_timeout_s) == (1, 60)


def test_the_head_of_dask_keeps_no_state() -> None:
    platform = parse_platform(SMALL + "runtime: dask\n")
    assert platform.head.state.kind == "none"


def test_cpus_and_memory_may_be_quantities() -> None:
    text = SMALL.replace("cpus: 2, memory: 4Gi", "cpus: 1500m, memory: 512Mi")
    group = parse_platform(text).group("cpu")
    assert (group.cpus, group.memory_gib) == (1.5, 0.5)


def test_the_limit_of_the_name_is_the_operators() -> None:
    limit = consistency.NAME_LENGTH - len(consistency.SCHEDULER_SUFFIX)
    assert limit == constants.MAX_CLUSTER_NAME_LEN


@pytest.mark.parametrize(
    ("path", "value", "where", "words"),
    [
        # Kinds of values.
        ("groups/gpu-train/max", "8", "groups.gpu-train.max", "whole number"),
        ("groups/gpu-train/max", True, "groups.gpu-train.max", "flag true"),
        ("groups/gpu-train/max", 8.5, "groups.gpu-train.max", "whole number"),
        ("groups/gpu-train/price", True, "groups.gpu-train.price", "must be a number"),
        ("groups/gpu-train/price", [1], "groups.gpu-train.price", "a list"),
        ("groups/gpu-train/gang", "yes", "groups.gpu-train.gang", "true or false"),
        ("groups/gpu-train", 3, "groups.gpu-train", "must be a map"),
        ("groups/gpu-train/instances", "g6e", "groups.gpu-train.instances", "a list"),
        ("groups/gpu-train/instances", [4], "groups.gpu-train.instances[0]", "text"),
        ("groups/gpu-train/shape/memory", 112, "groups.gpu-train.shape.memory", "26Gi"),
        (
            "groups/gpu-train/shape/memory",
            "112GB",
            "groups.gpu-train.shape.memory",
            "Gi",
        ),
        ("groups/gpu-train/shape/cpus", "2Gi", "groups.gpu-train.shape.cpus", "1500m"),
        ("groups/gpu-train/env", {"A": 1}, "groups.gpu-train.env.A", 'quotes: "1"'),
        ("kubernetes_version", 1.33, "kubernetes_version", 'quotes: "1.33"'),
        ("account", 111122223333, "account", "quotes"),
        ("queues/train/quota/cpu", "many", "queues.train.quota.cpu", "64Gi"),
        ("name", "", "name", "is empty"),
        # Ranges.
        ("groups/gpu-train/min", -1, "groups.gpu-train.min", "at least 0"),
        ("groups/gpu-train/max", 0, "groups.gpu-train.max", "at least 1"),
        ("groups/gpu-train/shape/cpus", 0, "groups.gpu-train.shape.cpus", "above 0"),
        ("groups/gpu-train/price", float("nan"), "groups.gpu-train.price", "finite"),
        ("groups/gpu-train/price", float("inf"), "groups.gpu-train.price", "finite"),
        ("groups/gpu-train/capacity", "cheap", "groups.gpu-train.capacity", "spot"),
        (
            "service_levels/serve/availability",
            99.9,
            "service_levels.serve.availability",
            "at most 1",
        ),
        ("drill/head_s", 0, "drill.head_s", "above 0"),
        ("scale", 0, "scale", "above 0"),
        # Unknown and missing keys.
        ("groups/gpu-train/maxx", 3, "groups.gpu-train.maxx", "did you mean max"),
        ("group", {}, "group", "did you mean groups"),
        ("groups/gpu-train/shape/cpu", 3, "groups.gpu-train.shape.cpu", "mean cpus"),
        ("head/state/knd", "none", "head.state.knd", "did you mean kind"),
        ("tls/zzz", 1, "tls.zzz", "there are: enabled"),
        ("namespace", None, "namespace", "is missing"),
        ("groups/gpu-train/shape", None, "groups.gpu-train.shape", "is missing"),
        ("groups", {}, "groups", "at least one group"),
        # Contradictions.
        ("groups/gpu-train/min", 9, "groups.gpu-train.min", "above max (8)"),
        ("groups/gpu-train/warm", 9, "groups.gpu-train.warm", "above max (8)"),
        (
            "groups/gpu-train/shape/store",
            "112Gi",
            "groups.gpu-train.shape.store",
            "not below the memory",
        ),
        (
            "groups/gpu-train/shape/resources",
            {"GPU": 2},
            "groups.gpu-train.shape.resources.GPU",
            "accelerator",
        ),
        ("groups/gpu-train/queue", None, "groups.gpu-train.queue", "gang"),
        ("groups/gpu-train/queue", "trian", "groups.gpu-train.queue", "mean train"),
        (
            "groups/gpu-train/priority",
            "nihgtly",
            "groups.gpu-train.priority",
            "mean nightly",
        ),
        ("groups/gpu-serve/priority", "search", "groups.gpu-serve.priority", "a queue"),
        (
            "queues/train/groups",
            ["gpu-tran"],
            "queues.train.groups[0]",
            "mean gpu-train",
        ),
        ("queues/train/groups", [], "queues.train.groups", "lacks gpu-train"),
        (
            "queues/train/groups",
            ["gpu-train", "gpu-train"],
            "queues.train.groups[1]",
            "twice",
        ),
        (
            "queues/train/quota",
            {"cpu": 1},
            "queues.train.borrowing.nvidia.com/gpu",
            "quota",
        ),
        (
            "queues/train/quota",
            {"nvidia.com/gpu": 0, "cpu": 120, "memory": "896Gi"},
            "queues.train.quota.nvidia.com/gpu",
            "0 admits no worker of gpu-train",
        ),
        ("queues/train/quota", {}, "queues.train.quota", "is missing"),
        ("zones", ["us-west-2a"], "zones[0]", "us-east-1a"),
        ("zones", [], "zones", "at least one"),
        ("region", "America", "region", "us-east-1"),
        (
            "groups/gpu-train/instances",
            ["g6e.xlarge"],
            "groups.gpu-train.instances[0]",
            "4 vCPUs",
        ),
        (
            "groups/gpu-train/instances",
            ["g6.12xlarge"],
            "groups.gpu-train.instances[0]",
            "has L4, not L40S",
        ),
        ("head/instance", "m7i.large", "head.instance", "kubelet"),
        # Images.
        ("images/gpu", "rayshim:latest", "images.gpu", "version"),
        ("images/gpu", "rayshim", "images.gpu", "version"),
        ("images/gpu", "ray shim:1", "images.gpu", "registry/name:tag"),
        ("head/state/image", "valkey/valkey:latest", "head.state.image", "version"),
        # Names.
        ("name", "Rank", "name", "lower-case"),
        ("name", "1rank", "name", "begin with a letter"),
        ("name", "r" * 54, "name", "at most 53"),
        ("name", "r" * 40, "groups.cpu-ingest", "69 characters"),
        ("namespace", "Ray", "namespace", "lower-case"),
        ("groups/GPU", {"shape": {"cpus": 1, "memory": "1Gi"}}, "groups.GPU", "lower"),
        (
            "groups/default",
            {"shape": {"cpus": 1, "memory": "1Gi"}},
            "groups.default",
            "another",
        ),
        ("groups/gpu-serve/labels", {"a": "b c"}, "groups.gpu-serve.labels.a", "63"),
        ("groups/gpu-serve/env", {"A-B": "c"}, "groups.gpu-serve.env.A-B", "variable"),
        ("buckets/B_1", {"region": "us-east-1"}, "buckets.B_1", "bucket's name"),
        # Head and TLS.
        ("runtime", "dask", "head.state.kind", "must be none"),
        ("head/state/kind", "external", "head.state.secret", "key `url`"),
        ("head/state/endpoint", "db.local", "head.state.endpoint", "no use"),
        ("tls/issuer", None, "tls.issuer", "cert-manager"),
        ("tls/source", "secret", "tls.issuer", "no use"),
        # Service levels.
        (
            "service_levels/serve/group",
            "gpu-srve",
            "service_levels.serve.group",
            "mean gpu-serve",
        ),
        ("service_levels/serve/zones", 4, "service_levels.serve.zones", "above the 3"),
        (
            "service_levels/serve/tail_ms",
            60,
            "service_levels.serve.p99_ms",
            "32 ms + 60 ms = 92 ms is above 80 ms",
        ),
        (
            "service_levels/serve/latency_ms",
            {"network": 3, "forward": 2},
            "service_levels.serve.latency_ms.queue",
            "queue + forward",
        ),
        (
            "service_levels/serve/requests_per_s",
            30000,
            "groups.gpu-serve.max",
            "below the 114 workers",
        ),
        ("service_levels/train/rows_per_s", 1e5, "service_levels.train.workers", "few"),
        ("service_levels/train", None, "service_levels.ingest", "needs"),
        (
            "service_levels/tune/group",
            "cpu-ingest",
            "service_levels.tune.group",
            "no acc",
        ),
        (
            "service_levels/tune/budget_gpu_hours",
            100,
            "service_levels.tune.budget_gpu_hours",
            "below 203.91",
        ),
        (
            "service_levels/tune/halving",
            [{"reduction_factor": 2, "grace_divisor": 1000}],
            "service_levels.tune.halving[0]",
            "comes to its end",
        ),
        (
            "service_levels/tune/halving",
            [{"reduction_factor": 1, "grace_divisor": 9}],
            "service_levels.tune.halving[0].reduction_factor",
            "at least 2",
        ),
        ("service_levels/serve", None, "ingress.host", "service_levels.serve"),
    ],
)
def test_refuses(path: str, value: Any, where: str, words: str) -> None:
    error = refusal(at(path, value))
    assert error.path == where
    assert words in error.problem
    assert str(error) == f"platform.yaml: {error.path}: {error.problem}"


@pytest.mark.parametrize(
    ("text", "where", "words"),
    [
        ("", "(file)", "is empty"),
        ("- a\n", "(file)", "a list"),
        ("name: [a\n", "line 2", ""),
        ("name: demo\nname: other\n", "line 2", "stands here and in line 1"),
        (SMALL + "  gpu: {}\n  cpu: {}\n", "line 10", "'cpu' stands here"),
        (SMALL + "tls:\n", "tls", "is empty; write a value, or remove the key"),
        (SMALL + "1: 2\n", "(file)", "the key 1 is no text"),
        (SMALL + "when: !!timestamp soon\n", "(file)", "is no YAML"),
        (SMALL + "when: !!bool maybe\n", "(file)", "is no YAML"),
        (SMALL + "when: !!python/object:os.system x\n", "line 9", "constructor"),
        (SMALL + "when: !!set {a, b}\n", "when", "must be plain YAML"),
        (SMALL + "tls: &a {enabled: *a}\n", "tls.enabled", "levels"),
        (SMALL + "extends: other.yaml\n", "extends", "load_platform"),
        (SMALL + "tls: {enabled: yes}\n", "tls.enabled", "true or false"),
        ("a: " + "[" * 5000, "(file)", "too many levels"),
        (SMALL.replace("cpus: 2", "cpus: " + "9" * 5000), "(file)", "is no YAML"),
        (SMALL.replace("cpus: 2", "cpus: 1e999"), "groups.cpu.shape.cpus", "finite"),
    ],
)
def test_refuses_text_that_is_no_platform(text: str, where: str, words: str) -> None:
    error = refusal(text)
    assert error.path.startswith(where)  # of what holds itself, many levels below
    assert words in error.problem


def test_aliases_that_multiply_are_refused_at_once() -> None:
    rows = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    rows += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    assert "100000 values" in refusal("\n".join(rows)).problem


def test_a_scale_that_is_none_is_refused() -> None:
    for scale in (0, -1, float("inf"), float("nan")):
        with pytest.raises(ConfigError, match="scale: must be above 0"):
            load_platform(EXAMPLE, scale=scale)


# -- files that extend others ---------------------------------------------------------


def test_an_overlay_merges_maps_replaces_lists_and_removes(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(SMALL + "tls: {enabled: true}\naccount: '1'\n")
    (tmp_path / "eu").mkdir()
    overlay = tmp_path / "eu" / "platform.yaml"
    overlay.write_text(
        "extends: ../base.yaml\naccount:\nzones: [us-east-1b]\n"
        "groups: {cpu: {max: 3}, more: {shape: {cpus: 1, memory: 1Gi}}}\n"
    )
    platform = load_platform(overlay)
    assert platform.account == "111122223333"
    assert platform.zones == ("us-east-1b",)
    assert [(one.name, one.max) for one in platform.groups] == [("cpu", 3), ("more", 1)]
    assert platform.tls.is_enabled
    assert platform.source == str(overlay)


def test_merging_is_that_of_json_merge_patch() -> None:
    base = {"a": "b", "c": {"d": "e", "f": "g"}, "l": [1, 2]}
    change = {"a": "z", "c": {"f": None}, "l": [3], "n": {"x": None, "y": 1}}
    assert merged(base, change) == {"a": "z", "c": {"d": "e"}, "l": [3], "n": {"y": 1}}


def test_files_that_extend_each_other_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("extends: b.yaml\n")
    (tmp_path / "b.yaml").write_text("extends: a.yaml\n")
    with pytest.raises(ConfigError, match=r"extends: goes round in a circle.*a\.yaml"):
        load_platform(tmp_path / "a.yaml")


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.yaml: \(file\): cannot be read"):
        load_platform(tmp_path / "none.yaml")
    (tmp_path / "a.yaml").write_text("extends: none.yaml\n")
    with pytest.raises(
        ConfigError, match=r"a\.yaml: extends: cannot read .*none\.yaml"
    ):
        load_platform(tmp_path / "a.yaml")
    (tmp_path / "b.yaml").write_bytes(b"\xff\xfe\x00name")
    with pytest.raises(ConfigError, match=r"b\.yaml: \(file\): cannot be read"):
        load_platform(tmp_path / "b.yaml")


@pytest.mark.parametrize("file", ["platform", "overlays/10x/platform"])
def test_the_text_of_a_platform_is_that_platform(file: str) -> None:
    platform = load_platform(DEPLOY / f"{file}.yaml")
    again = parse_platform(platform.text, source=platform.source, scale=platform.scale)
    assert again == platform


# -- nothing but ConfigError ----------------------------------------------------------

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=12),
    st.sampled_from(
        ["1Gi", "500m", "us-east-1", "gpu-train", "a:b", "0", "{}", "{a.b}"]
    ),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=8) | st.integers(), inner, max_size=3)
    ),
    max_leaves=6,
)


def paths(values: Any, before: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [before] if before else []
    pairs: list[tuple[Any, Any]] = []
    if isinstance(values, dict):
        pairs = list(values.items())
    elif isinstance(values, list):
        pairs = list(enumerate(values))
    for key, inner in pairs:
        found += paths(inner, (*before, key))
    return found


CONTENT = yaml.safe_load(EXAMPLE.read_text())
PATHS = paths(CONTENT)
SLOW_HERE = settings(
    max_examples=150, deadline=None, suppress_health_check=list(HealthCheck)
)


@pytest.mark.slow
@SLOW_HERE
@given(st.lists(st.tuples(st.sampled_from(PATHS), VALUES), min_size=1, max_size=3))
def test_whatever_stands_in_the_file_only_configerror_is_raised(
    changes: list[tuple[tuple[Any, ...], Any]],
) -> None:
    values = yaml.safe_load(EXAMPLE.read_text())
    for path, value in changes:
        with contextlib.suppress(LookupError, TypeError):  # changed before
            inner = values
            for key in path[:-1]:
                inner = inner[key]
            inner[path[-1]] = value
    try:
        platform = parse_platform(yaml.dump(values))
        explain(platform)
        monthly_costs(platform).to_text()
    except ConfigError as error:
        assert error.path
        assert error.problem


@pytest.mark.slow
@SLOW_HERE
@given(st.text(alphabet=st.sampled_from("ab:-{}[]&*!|>'\"#%@,?~0 1.\n\t"), max_size=60))
def test_whatever_the_text_is_only_configerror_is_raised(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_platform(text)
