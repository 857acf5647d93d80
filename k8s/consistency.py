"""Contradictions in a platform: between its values, and with what Kubernetes takes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

from rayshim.k8s.config import ConfigError, Group, Platform
from rayshim.k8s.figures import amount, figure
from rayshim.k8s.instances import misfit
from rayshim.k8s.reading import nearest
from rayshim.k8s.sizes import (
    required_workers,
    rungs,
    serve_sizes,
    train_sizes,
    tune_sizes,
    tune_workers,
)

#: Longest name of a Service or label value (RFC 1035, Kubernetes).
NAME_LENGTH: Final = 63
#: What is put behind the platform's name for the head's Service.
SCHEDULER_SUFFIX: Final = "-scheduler"
#: What the operator puts behind a worker group's name: "-worker-" and 10 hex digits.
WORKER_SUFFIX_LENGTH: Final = 18
#: "-g" and 9 hex digits of a gang.
GANG_SUFFIX_LENGTH: Final = 11
#: Names of groups that would be those of other objects.
TAKEN: Final = ("autoscaler", "default", "head", "scheduler", "state")

_SERVICE = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
_BUCKET = re.compile(r"[a-z0-9][-a-z0-9.]{1,61}[a-z0-9]")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?")
_LABEL_NAME = re.compile(
    r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?"
)
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_GANG_LIKE = re.compile(r".*-g[0-9a-f]{9}")
_IMAGE = re.compile(
    r"(?:[a-zA-Z0-9][-a-zA-Z0-9.]*(?::[0-9]+)?/)?"
    r"[a-z0-9]+(?:[-._/]+[a-z0-9]+)*"
    r"(?::(?P<tag>[A-Za-z0-9_][-A-Za-z0-9_.]{0,127}))?"
    r"(?P<digest>@sha256:[0-9a-f]{64})?"
)

Complain = Callable[[str, str], ConfigError]


def check(platform: Platform) -> None:
    """Refuse a platform that contradicts itself.

    Raises:
        ConfigError: with the path of the value that is to be changed.
    """

    def complain(path: str, problem: str) -> ConfigError:
        return ConfigError(path, problem, platform.source)

    _check_names(platform, complain)
    _check_zones(platform, complain)
    images = {"images.cpu": platform.images.cpu, "images.gpu": platform.images.gpu}
    if platform.head.state.kind == "valkey":
        images["head.state.image"] = platform.head.state.image
    for path, image in images.items():
        _check_image(path, image, complain)
    _check_head(platform, complain)
    for group in platform.groups:
        _check_group(group, platform, complain)
    _check_queues(platform, complain)
    _check_serve(platform, complain)
    _check_train(platform, complain)
    _check_tune(platform, complain)
    for group in platform.groups:
        needed = required_workers(platform, group.name)
        if group.max < needed:
            raise complain(
                f"groups.{group.name}.max",
                f"{group.max} is below the {needed} workers that the service levels "
                "need; raise max, or lower the levels",
            )


def _check_names(platform: Platform, complain: Complain) -> None:
    limit = NAME_LENGTH - len(SCHEDULER_SUFFIX)
    if not _SERVICE.fullmatch(platform.name) or len(platform.name) > limit:
        raise complain(
            "name",
            f"must be at most {limit} lower-case letters, digits and '-', and begin "
            f"with a letter, not {platform.name!r}",
        )
    for group in platform.groups:
        path = f"groups.{group.name}"
        if not _DNS_LABEL.fullmatch(group.name):
            raise complain(
                path, "a group's name has lower-case letters, digits and '-'"
            )
        if group.name in TAKEN or _GANG_LIKE.fullmatch(group.name):
            raise complain(path, "is the name of another object; choose another one")
        name = f"{platform.name}-{group.name}"
        suffix = WORKER_SUFFIX_LENGTH + GANG_SUFFIX_LENGTH * group.is_gang
        if len(name) + suffix > NAME_LENGTH:
            raise complain(
                path,
                f"workers would be called {name}-...: {len(name) + suffix} characters, "
                f"and {NAME_LENGTH} may be; shorten the group's or the platform's name",
            )
    for kind, all_names in {
        "queues": [one.name for one in platform.queues],
        "priorities": [one.name for one in platform.priorities],
    }.items():
        for name in all_names:
            if not _SUBDOMAIN.fullmatch(name) or len(name) > NAME_LENGTH:
                raise complain(
                    f"{kind}.{name}",
                    "a name has at most 63 lower-case letters, digits, '-' and '.'",
                )
    for bucket in platform.buckets:
        if not _BUCKET.fullmatch(bucket.name):
            raise complain(
                f"buckets.{bucket.name}",
                "a bucket's name has 3 to 63 lower-case letters, digits, '-' and '.'",
            )


def _check_zones(platform: Platform, complain: Complain) -> None:
    if not platform.zones:
        wanted = f"{platform.region}a"
        raise complain("zones", f"is empty; write at least one, such as [{wanted}]")
    for n, zone in enumerate(platform.zones):
        if not re.fullmatch(rf"{platform.region}(-[a-z]+-[0-9])?[a-z]", zone):
            raise complain(
                f"zones[{n}]",
                f"{zone} is no zone of {platform.region}; write one such as "
                f"{platform.region}a",
            )


def _check_image(path: str, image: str, complain: Complain) -> None:
    found = _IMAGE.fullmatch(image)
    if found is None:
        raise complain(
            path, f"{image!r} is no name of an image; write registry/name:tag"
        )
    if not found["digest"] and found["tag"] in (None, "latest"):
        raise complain(
            path,
            f"{image} may be another image tomorrow; name a version, or a digest",
        )


def _check_head(platform: Platform, complain: Complain) -> None:
    head, state = platform.head, platform.head.state
    why = misfit(head.instance, head.cpus, head.memory_gib, "", 0)
    if why:
        raise complain("head.instance", f"{why}; lower head.cpus or head.memory")
    if platform.runtime == "dask" and state.kind != "none":
        raise complain(
            "head.state.kind",
            "must be none with `runtime: dask`, whose scheduler keeps nothing",
        )
    if state.kind == "external":
        if not state.secret:
            raise complain(
                "head.state.secret",
                "is missing; name a Secret whose key `url` has the redis:// URL",
            )
        if not state.endpoint:
            raise complain(
                "head.state.endpoint", "is missing; write the host name of that URL"
            )
    elif state.endpoint or state.secret or state.region:
        key = next(
            one for one in ("endpoint", "secret", "region") if getattr(state, one)
        )
        raise complain(f"head.state.{key}", f"has no use with `kind: {state.kind}`")
    tls = platform.tls
    if tls.is_enabled and tls.source == "cert-manager" and not tls.issuer:
        raise complain(
            "tls.issuer", "is missing; name the Issuer that cert-manager has"
        )
    if tls.source == "secret" and tls.issuer:
        raise complain("tls.issuer", "has no use with `source: secret`; remove it")
    _check_env("head.env", head.env, complain)


def _check_group(group: Group, platform: Platform, complain: Complain) -> None:
    at = f"groups.{group.name}"
    if group.min > group.max:
        raise complain(f"{at}.min", f"{group.min} is above max ({group.max})")
    if group.warm > group.max:
        raise complain(f"{at}.warm", f"{group.warm} is above max ({group.max})")
    if group.store_gib >= group.memory_gib:
        raise complain(
            f"{at}.shape.store",
            f"{group.store_gib:g} GiB is not below the memory "
            f"({group.memory_gib:g} GiB), of which it is a part",
        )
    kind, count = ("", 0)
    if group.accelerator is not None:
        kind, count = group.accelerator.type, group.accelerator.count
    for n, name in enumerate(group.instances):
        why = misfit(name, group.cpus, group.memory_gib, kind, count)
        if why:
            raise complain(
                f"{at}.instances[{n}]", f"{why}; change the shape or the type"
            )
    reserved = [name for name in group.resources if name in ("CPU", "GPU", "memory")]
    if reserved:
        raise complain(
            f"{at}.shape.resources.{reserved[0]}",
            "follows from cpus, memory and accelerator; remove it",
        )
    if group.is_gang and not group.queue:
        raise complain(
            f"{at}.queue", "is missing; a gang is admitted by a queue, so name one"
        )
    if group.is_gang and platform.runtime == "dask":
        raise complain(f"{at}.gang", "must be false: Dask has no placement groups")
    known = [one.name for one in platform.queues]
    if group.queue and group.queue not in known:
        raise complain(
            f"{at}.queue", f"no queue {group.queue}; {nearest(group.queue, known)}"
        )
    levels = [one.name for one in platform.priorities]
    if group.priority and group.priority not in levels:
        raise complain(
            f"{at}.priority",
            f"no priority {group.priority}; {nearest(group.priority, levels)}",
        )
    if group.priority and not group.queue:
        raise complain(
            f"{at}.priority", "has no use without a queue; name one, or remove"
        )
    _check_labels(f"{at}.labels", group.labels, complain)
    _check_labels(f"{at}.node_selector", group.node_selector, complain)
    _check_env(f"{at}.env", group.env, complain)


def _check_labels(path: str, labels: Mapping[str, str], complain: Complain) -> None:
    for name, value in labels.items():
        if (
            not _LABEL_NAME.fullmatch(name)
            or len(name.rpartition("/")[2]) > NAME_LENGTH
        ):
            raise complain(f"{path}.{name}", "is no name of a label of Kubernetes")
        if not _LABEL_VALUE.fullmatch(value) or len(value) > NAME_LENGTH:
            raise complain(
                f"{path}.{name}",
                f"{value!r} is no label's value: at most 63 letters, digits, '-', '_' "
                "and '.'",
            )


def _check_env(path: str, env: Mapping[str, str], complain: Complain) -> None:
    for name in env:
        if not _ENV_NAME.fullmatch(name):
            raise complain(f"{path}.{name}", "is no name of an environment variable")


def _check_queues(platform: Platform, complain: Complain) -> None:
    groups = [one.name for one in platform.groups]
    for queue in platform.queues:
        at = f"queues.{queue.name}"
        for n, name in enumerate(queue.groups):
            if name not in groups:
                raise complain(
                    f"{at}.groups[{n}]", f"no group {name}; {nearest(name, groups)}"
                )
        if not queue.quota:
            raise complain(f"{at}.quota", "is missing; write how much it may use")
        for name in queue.borrowing or ():
            if name not in queue.quota:
                raise complain(
                    f"{at}.borrowing.{name}",
                    f"is not in its quota; {nearest(name, queue.quota)}",
                )
    for group in platform.groups:
        if not group.queue:
            continue
        queue = next(one for one in platform.queues if one.name == group.queue)
        at = f"queues.{queue.name}"
        if group.name not in queue.groups:
            raise complain(
                f"{at}.groups",
                f"lacks {group.name}, whose pods go through this queue; add it",
            )
        if group.accelerator is None:
            continue
        name = group.accelerator.resource
        if name not in queue.quota:
            raise complain(
                f"{at}.quota.{name}", f"is missing, and {group.name} asks for it"
            )
        one = group.accelerator.count
        if queue.borrowing is not None:
            lent = queue.borrowing.get(name, 0)
            if queue.quota[name] + lent < one:
                raise complain(
                    f"{at}.quota.{name}",
                    f"{figure(queue.quota[name])} admits no worker of {group.name}, "
                    f"which has {one}",
                )


def _check_level(
    platform: Platform, level: str, group: str, complain: Complain
) -> None:
    known = [one.name for one in platform.groups]
    if group not in known:
        raise complain(
            f"service_levels.{level}.group",
            f"no group {group}; {nearest(group, known)}",
        )


def _check_serve(platform: Platform, complain: Complain) -> None:
    level = platform.serve
    if level is None:
        if platform.serve_host:
            raise complain("ingress.host", "needs service_levels.serve; describe it")
        return
    at = "service_levels.serve"
    _check_level(platform, "serve", level.group, complain)
    for part in ("queue", "forward"):
        if part not in level.latency_ms:
            raise complain(
                f"{at}.latency_ms.{part}", "is missing; a batch takes queue + forward"
            )
    if level.zones > len(platform.zones):
        raise complain(
            f"{at}.zones",
            f"{level.zones} is above the {len(platform.zones)} of `zones`",
        )
    p99 = serve_sizes(level).p99
    if p99.value > level.p99_ms:
        raise complain(
            f"{at}.p99_ms",
            f"{p99.arithmetic} = {amount(p99.value, 'ms')} is above "
            f"{amount(level.p99_ms, 'ms')}; shorten a part of latency_ms or tail_ms",
        )


def _check_train(platform: Platform, complain: Complain) -> None:
    level, ingest = platform.train, platform.ingest
    if ingest is not None:
        _check_level(platform, "ingest", ingest.group, complain)
        if level is None:
            raise complain(
                "service_levels.ingest",
                "needs service_levels.train, for which it reads",
            )
    if level is None:
        return
    _check_level(platform, "train", level.group, complain)
    needed = train_sizes(level).needed
    if level.workers < needed.value:
        raise complain(
            "service_levels.train.workers",
            f"{level.workers} are too few: {needed.arithmetic} = "
            f"{figure(needed.value)}; raise workers with rows_per_s, or window_share",
        )


def _check_tune(platform: Platform, complain: Complain) -> None:
    level = platform.tune
    if level is None:
        return
    at = "service_levels.tune"
    _check_level(platform, "tune", level.group, complain)
    accelerator = platform.group(level.group).accelerator
    if accelerator is None:
        raise complain(
            f"{at}.group", f"{level.group} has no accelerator to search with"
        )
    for n, way in enumerate(level.halving):
        if rungs(level, way)[-1][2] < 1:
            raise complain(
                f"{at}.halving[{n}]",
                f"no configuration of {level.configurations} comes to its end; lower "
                "the factor or the grace divisor",
            )
    sizes = tune_sizes(level, tune_workers(platform), accelerator.count)
    low = min([sizes.full.value, *(one.value for one in sizes.halved)])
    if level.budget_gpu_hours < low * (1 - 1e-9):
        raise complain(
            f"{at}.budget_gpu_hours",
            f"{figure(level.budget_gpu_hours)} is below {figure(low)} GPU-h, the least "
            "that a search takes; raise it, or add a way to `halving`",
        )
