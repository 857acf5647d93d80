"""What cloud objects say, and that what they refer to is there."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib.metadata import version
from typing import Any

import kubernetes_validate
import pytest
import yaml
from dask_kubernetes.operator.controller.controller import (
    build_scheduler_deployment_spec,
    build_scheduler_service_spec,
    build_worker_deployment_spec,
)

from platforms import (
    CPU_INGEST,
    GPU_SERVE,
    GPU_TRAIN,
    dask_platform,
    example_platform,
    small_platform,
    tls_platform,
)
from rayshim.k8s import metric_names, names
from rayshim.k8s.config import (
    Bucket,
    ConfigError,
    Platform,
    Queue,
    Residency,
)
from rayshim.k8s.metric_names import MetricName
from rayshim.k8s.render import render
from rayshim.k8s.rendering import (
    eksctl,
    iam,
    kueue,
    monitoring,
    operator_values,
)
from rayshim.k8s.rendering.queries import label
from rayshim.k8s.serializing import from_yaml

Object = dict[str, Any]

PLATFORM = example_platform()


def made(platform: Platform, kind: str) -> list[Object]:
    """Rendered objects of a kind, whether ``up`` applies them or not."""
    contents = render(platform).files.values()
    return [
        one
        for content in contents
        if not isinstance(content, str)
        for one in content
        if one["kind"] == kind
    ]


def named(platform: Platform, kind: str, name: str) -> Object:
    """One of them."""
    return next(one for one in made(platform, kind) if one["metadata"]["name"] == name)


def worker_pod(platform: Platform, group: str) -> Object:
    """A worker's pod, as the operator makes its Deployment."""
    found = named(platform, "DaskWorkerGroup", f"{platform.name}-{group}")
    worker, meta = found["spec"]["worker"], found["metadata"]
    deployment = build_worker_deployment_spec(
        worker_group_name=meta["name"],
        namespace=platform.namespace,
        cluster_name=platform.name,
        uuid="0123456789",
        pod_spec=worker["spec"],
        annotations=worker["metadata"].get("annotations", {}),
        labels={**meta["labels"], **worker["metadata"]["labels"]},
    )
    template: Object = deployment["spec"]["template"]
    return template


def head_parts(platform: Platform) -> tuple[Object, Object]:
    """The head's pod and Service, as the operator makes them."""
    found = made(platform, "DaskCluster")[0]
    scheduler = found["spec"]["scheduler"]
    labels = {**found["metadata"]["labels"], **scheduler["metadata"]["labels"]}
    deployment = build_scheduler_deployment_spec(
        platform.name, scheduler["spec"], {}, labels
    )
    service = build_scheduler_service_spec(
        platform.name, scheduler["service"], {}, labels
    )
    return deployment["spec"]["template"], service


def matches(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Whether matchLabels of a selector match."""
    return selector["matchLabels"].items() <= labels.items()


def port_names(pod: Mapping[str, Any]) -> set[str]:
    """Names of a pod's ports."""
    return {one["name"] for each in pod["spec"]["containers"] for one in each["ports"]}


def tolerates(tolerations: list[Object], taint: Mapping[str, str]) -> bool:
    """Whether one of the tolerations is for a taint."""
    return any(
        one.get("key") in (None, taint["key"])
        and one.get("effect") in (None, taint["effect"])
        and (one.get("operator") == "Exists" or one.get("value") == taint["value"])
        for one in tolerations
    )


@pytest.mark.parametrize(
    "platform", [PLATFORM, tls_platform(), dask_platform(), small_platform()]
)
def test_the_same_platform_gives_the_same_bytes(platform: Platform) -> None:
    assert render(platform).texts() == render(replace(platform)).texts()


def test_every_object_carries_our_labels() -> None:
    wanted = names.labels("demo").items()
    kinds = (
        "NodePool EC2NodeClass Topology ResourceFlavor ClusterQueue LocalQueue "
        "WorkloadPriorityClass ServiceMonitor PodMonitor PrometheusRule StorageClass"
    )
    for kind in kinds.split():
        assert made(PLATFORM, kind), kind
        for one in made(PLATFORM, kind):
            assert wanted <= one["metadata"]["labels"].items()


def test_storage_class_is_valid_and_the_one_that_the_head_asks_for() -> None:
    found = named(PLATFORM, "StorageClass", "gp3")

    kubernetes_validate.validate(found, "1.33", strict=True)
    assert PLATFORM.head.state.storage_class == "gp3"
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate({**found, "provisioner": 1}, "1.33", strict=True)


def test_without_an_eks_cluster_nothing_is_for_a_cloud() -> None:
    paths = render(small_platform()).files

    assert not any(
        path.startswith(("eksctl/", "karpenter/", "iam/", "kueue/")) for path in paths
    )


class TestNodePools:
    def test_there_is_one_for_the_head_and_for_each_group(self) -> None:
        found = [one["metadata"]["name"] for one in made(PLATFORM, "NodePool")]

        assert found == ["head", "cpu-ingest", "gpu-train", "gpu-serve"]

    def test_their_node_classes_are_there(self) -> None:
        classes = {one["metadata"]["name"] for one in made(PLATFORM, "EC2NodeClass")}
        used = {
            one["spec"]["template"]["spec"]["nodeClassRef"]["name"]
            for one in made(PLATFORM, "NodePool")
        }

        assert used == classes

    @pytest.mark.parametrize("group", [one.name for one in PLATFORM.groups])
    def test_workers_fit_their_machines(self, group: str) -> None:
        pool = named(PLATFORM, "NodePool", group)["spec"]["template"]
        pod = worker_pod(PLATFORM, group)["spec"]

        assert pod["nodeSelector"].items() <= pool["metadata"]["labels"].items()
        for taint in pool["spec"]["taints"]:
            assert tolerates(pod["tolerations"], taint), taint

    def test_a_worker_is_not_put_on_machines_of_another_group(self) -> None:
        pod = worker_pod(PLATFORM, "cpu-ingest")["spec"]
        taints = named(PLATFORM, "NodePool", "gpu-train")["spec"]["template"]["spec"]

        assert not all(tolerates(pod["tolerations"], one) for one in taints["taints"])

    def test_the_head_fits_its_machine(self) -> None:
        pool = named(PLATFORM, "NodePool", "head")["spec"]["template"]
        pod, _ = head_parts(PLATFORM)

        assert pod["spec"]["nodeSelector"].items() <= pool["metadata"]["labels"].items()
        for taint in pool["spec"]["taints"]:
            assert tolerates(pod["spec"]["tolerations"], taint), taint

    def test_limits_are_those_of_max_machines(self) -> None:
        limits = {
            one["metadata"]["name"]: one["spec"]["limits"]
            for one in made(PLATFORM, "NodePool")
        }

        assert limits == {
            "head": {"cpu": limits["head"]["cpu"]},
            # 20 m7i.4xlarge of 16 virtual CPUs, 4 g5.12xlarge of 48 with 4 GPUs, 24
            # g6.2xlarge of 8 with one.
            "cpu-ingest": {"cpu": "320"},
            "gpu-train": {"cpu": "192", "nvidia.com/gpu": "16"},
            "gpu-serve": {"cpu": "192", "nvidia.com/gpu": "24"},
        }

    def test_a_limit_never_hinders_a_machine_with_more_gpus_than_a_worker(self) -> None:
        group = replace(GPU_SERVE, min=0, max=3, instances=("g6.12xlarge",))
        platform = example_platform(groups=(CPU_INGEST, GPU_TRAIN, group))

        found = named(platform, "NodePool", "gpu-serve")["spec"]["limits"]

        assert found == {"cpu": "144", "nvidia.com/gpu": "12"}

    def test_running_workers_are_never_consolidated_away(self) -> None:
        for one in made(PLATFORM, "NodePool"):
            disruption = one["spec"]["disruption"]
            budgets = {
                reason: budget["nodes"]
                for budget in disruption["budgets"]
                for reason in budget["reasons"]
            }
            assert disruption["consolidationPolicy"] == "WhenEmpty"
            assert budgets["Underutilized"] == "0"
            assert budgets["Empty"] == "100%"

    def test_machines_of_jobs_are_not_replaced_and_those_that_stay_one_by_one(
        self,
    ) -> None:
        def of(name: str) -> tuple[str, str]:
            spec = named(PLATFORM, "NodePool", name)["spec"]
            drifted = next(
                one["nodes"]
                for one in spec["disruption"]["budgets"]
                if one["reasons"] == ["Drifted"]
            )
            return drifted, spec["template"]["spec"]["expireAfter"]

        assert of("gpu-train") == ("0", "Never")
        assert of("cpu-ingest") == ("0", "Never")
        assert of("gpu-serve") == ("1", "720h")
        assert of("head") == ("0", "Never")

    def test_only_spot_groups_get_spot_machines(self) -> None:
        spot = replace(CPU_INGEST, capacity="spot")
        platform = example_platform(groups=(spot, GPU_TRAIN, GPU_SERVE))

        def capacity(name: str) -> list[str]:
            found = named(platform, "NodePool", name)["spec"]["template"]["spec"]
            values: list[str] = next(
                one["values"]
                for one in found["requirements"]
                if one["key"] == "karpenter.sh/capacity-type"
            )
            return values

        assert capacity("cpu-ingest") == ["spot"]
        assert capacity("gpu-train") == ["on-demand"]

    def test_the_device_plugin_runs_on_all_machines_with_gpus(self) -> None:
        text = render(PLATFORM).files["nvidia-device-plugin/values.yaml"]
        assert isinstance(text, str)
        values = from_yaml(text)[0]

        for group in PLATFORM.groups:
            pool = named(PLATFORM, "NodePool", group.name)["spec"]["template"]
            labels = pool["metadata"]["labels"]
            is_chosen = values["nodeSelector"].items() <= labels.items()
            assert is_chosen == group.is_gpu
            if group.is_gpu:
                for taint in pool["spec"]["taints"]:
                    assert tolerates(values["tolerations"], taint)


class TestEksctl:
    def test_node_groups_are_as_the_node_pools(self) -> None:
        found = eksctl.with_node_groups(PLATFORM)["managedNodeGroups"]
        groups = {one["name"]: one for one in found}

        for pool in made(PLATFORM, "NodePool"):
            group = groups[pool["metadata"]["name"]]
            template = pool["spec"]["template"]
            assert group["labels"].items() <= template["metadata"]["labels"].items()
            assert group["taints"] == template["spec"]["taints"]
        assert [groups["gpu-serve"][one] for one in ("minSize", "maxSize")] == [6, 24]
        assert [groups["gpu-train"][one] for one in ("minSize", "maxSize")] == [0, 4]
        assert "taints" not in groups["system"]

    def test_network_policies_are_enforced(self) -> None:
        for cluster in (
            eksctl.with_karpenter(PLATFORM),
            eksctl.with_node_groups(PLATFORM),
        ):
            addons = {one["name"]: one for one in cluster["addons"]}
            settings = json.loads(addons["vpc-cni"]["configurationValues"])
            assert settings == {"enableNetworkPolicy": "true"}
            assert "eks-pod-identity-agent" in addons

    def test_karpenter_finds_what_eksctl_makes(self) -> None:
        cluster = eksctl.with_karpenter(PLATFORM)
        classes = made(PLATFORM, "EC2NodeClass")

        for one in classes:
            for terms in ("subnetSelectorTerms", "securityGroupSelectorTerms"):
                wanted = one["spec"][terms][0]["tags"]
                assert wanted.items() <= cluster["metadata"]["tags"].items()
        entry = cluster["accessConfig"]["accessEntries"][0]["principalARN"]
        assert entry.endswith(f":role/{classes[0]['spec']['role']}")

    def test_the_pods_account_gets_the_rights(self) -> None:
        accounts = {one["metadata"]["name"] for one in made(PLATFORM, "ServiceAccount")}
        found = eksctl.with_karpenter(PLATFORM)["iam"]["podIdentityAssociations"][-1]

        assert found["serviceAccountName"] in accounts
        assert found["namespace"] == PLATFORM.namespace
        assert found["permissionPolicy"] == iam.policy(PLATFORM)
        for group in PLATFORM.groups:
            pod = worker_pod(PLATFORM, group.name)["spec"]
            assert pod["serviceAccountName"] == found["serviceAccountName"]


class TestIam:
    def test_rights_are_for_the_prefixes_alone(self) -> None:
        found = iam.policy(PLATFORM)
        assert found is not None
        by_action = {one["Sid"]: one for one in found["Statement"]}

        assert by_action["ReadDemoData"]["Resource"] == [
            "arn:aws:s3:::demo-data/raw/*",
            "arn:aws:s3:::demo-data/models/*",
        ]
        assert by_action["WriteDemoData"]["Resource"] == [
            "arn:aws:s3:::demo-data/models/*"
        ]
        assert by_action["ListDemoData"]["Condition"] == {
            "StringLike": {"s3:prefix": ["raw/*", "models/*"]}
        }
        assert not any(one["Resource"] == "*" for one in found["Statement"])

    def test_a_bucket_that_is_only_read_is_not_written(self) -> None:
        bucket = Bucket("a.b-c", "us-east-1", read=("", "x"))
        found = iam.policy(example_platform(buckets=(bucket,)))
        assert found is not None

        actions = json.dumps([one["Action"] for one in found["Statement"]])
        assert "Put" not in actions
        assert "Delete" not in actions
        read = next(one for one in found["Statement"] if one["Sid"] == "ReadABC")
        assert read["Resource"] == ["arn:aws:s3:::a.b-c/*", "arn:aws:s3:::a.b-c/x/*"]

    def test_a_region_that_shares_nothing_is_closed(self) -> None:
        residency = Residency("eu-central-1")
        bucket = Bucket("eu-data", "eu-central-1", read=("raw/",))
        platform = example_platform(
            region="eu-central-1", residency=residency, buckets=(bucket,)
        )

        found = iam.policy(platform)

        assert found is not None
        assert found["Statement"][-1] == {
            "Sid": "NothingOutsideTheRegion",
            "Effect": "Deny",
            "Action": "s3:*",
            "Resource": "*",
            "Condition": {"StringNotEquals": {"aws:RequestedRegion": "eu-central-1"}},
        }

    def test_without_buckets_there_is_no_role(self) -> None:
        platform = example_platform(buckets=())

        assert iam.policy(platform) is None
        assert iam.files(platform) == {}
        found = eksctl.with_karpenter(platform)["iam"]["podIdentityAssociations"]
        assert "demo-node" not in {one["serviceAccountName"] for one in found}

    def test_only_this_account_of_this_cluster_may_take_the_role(self) -> None:
        condition = iam.trust(PLATFORM)["Statement"][0]["Condition"]

        assert condition["ArnEquals"]["aws:SourceArn"] == (
            "arn:aws:eks:us-east-1:111122223333:cluster/demo"
        )
        tags = condition["StringEquals"]
        assert tags["aws:RequestTag/kubernetes-namespace"] == "ray-prod"
        assert tags["aws:RequestTag/kubernetes-service-account"] == "demo-node"

    def test_irsa_is_for_the_same_role(self) -> None:
        account = named(PLATFORM, "ServiceAccount", "demo-node")
        path, association = "iam/irsa.yaml", "iam/pod-identity-association.json"
        content = render(PLATFORM).files[path]
        assert not isinstance(content, str)
        found = content[0]["iam"]["serviceAccounts"][0]
        text = render(PLATFORM).files[association]
        assert isinstance(text, str)

        assert found["metadata"]["name"] == account["metadata"]["name"]
        assert json.loads(text)["roleArn"].endswith(f":role/{found['roleName']}")
        assert found["attachPolicy"] == iam.policy(PLATFORM)

    def test_a_name_that_iam_does_not_take_is_refused(self) -> None:
        platform = example_platform(eks_cluster="x" * 50)

        with pytest.raises(ConfigError, match="eks_cluster: IAM takes no role"):
            eksctl.files(platform)


class TestKueue:
    def test_queues_flavors_and_topology_are_there(self) -> None:
        flavors = {one["metadata"]["name"] for one in made(PLATFORM, "ResourceFlavor")}
        queues = {
            one["metadata"]["name"]: one for one in made(PLATFORM, "ClusterQueue")
        }
        topologies = {one["metadata"]["name"] for one in made(PLATFORM, "Topology")}

        for one in made(PLATFORM, "LocalQueue"):
            assert one["metadata"]["namespace"] == PLATFORM.namespace
            assert one["spec"]["clusterQueue"] in queues
        for queue in queues.values():
            for group in queue["spec"]["resourceGroups"]:
                assert {one["name"] for one in group["flavors"]} <= flavors
        for flavor in made(PLATFORM, "ResourceFlavor"):
            assert flavor["spec"].get("topologyName") in {None, *topologies}

    def test_all_queues_are_in_one_cohort(self) -> None:
        found = {one["spec"]["cohortName"] for one in made(PLATFORM, "ClusterQueue")}

        assert found == {"demo"}

    def test_a_flavor_is_the_machines_of_its_group(self) -> None:
        for flavor in made(PLATFORM, "ResourceFlavor"):
            pool = named(PLATFORM, "NodePool", flavor["metadata"]["name"])
            template = pool["spec"]["template"]
            labels = template["metadata"]["labels"]
            assert flavor["spec"]["nodeLabels"].items() <= labels.items()
            assert flavor["spec"]["nodeTaints"] == template["spec"]["taints"]
            for taint in template["spec"]["taints"]:
                assert tolerates(flavor["spec"]["tolerations"], taint)

    def test_workers_name_a_queue_and_a_priority_that_are_there(self) -> None:
        queues = {one["metadata"]["name"] for one in made(PLATFORM, "LocalQueue")}
        classes = {
            one["metadata"]["name"] for one in made(PLATFORM, "WorkloadPriorityClass")
        }
        labels = worker_pod(PLATFORM, "gpu-train")["metadata"]["labels"]

        assert labels[names.QUEUE] in queues
        assert labels[names.PRIORITY_CLASS] in classes
        assert (
            names.QUEUE not in worker_pod(PLATFORM, "gpu-serve")["metadata"]["labels"]
        )
        assert names.QUEUE not in head_parts(PLATFORM)[0]["metadata"]["labels"]

    def test_a_queue_covers_all_that_its_pods_ask_for(self) -> None:
        """Kueue never admits a pod that asks for anything else."""
        queue = named(PLATFORM, "ClusterQueue", "train")["spec"]["resourceGroups"][0]
        pod = worker_pod(PLATFORM, "gpu-train")["spec"]["containers"][0]

        assert set(pod["resources"]["requests"]) <= set(queue["coveredResources"])
        assert set(pod["resources"]["limits"]) <= set(queue["coveredResources"])

    def test_quotas_are_the_files_and_else_what_the_group_can_use(self) -> None:
        queue = named(PLATFORM, "ClusterQueue", "train")["spec"]["resourceGroups"][0]

        assert queue["flavors"] == [
            {
                "name": "gpu-train",
                "resources": [
                    {"name": "nvidia.com/gpu", "nominalQuota": "16"},
                    {"name": "cpu", "nominalQuota": "176"},
                    {"name": "memory", "nominalQuota": "1360Gi"},
                ],
            }
        ]

    def test_a_quota_is_shared_out_over_groups_in_order(self) -> None:
        queue = Queue(
            "both",
            {"nvidia.com/gpu": 18.0, "memory": 100.5 * 2**30},
            {"nvidia.com/gpu": 2.0},
            groups=("gpu-train", "gpu-serve"),
        )
        group = replace(GPU_TRAIN, queue="both")
        platform = example_platform(
            groups=(CPU_INGEST, group, GPU_SERVE), queues=(queue,)
        )

        found = named(platform, "ClusterQueue", "both")["spec"]["resourceGroups"][0]

        first, second = (
            {r["name"]: r for r in f["resources"]} for f in found["flavors"]
        )
        assert first["nvidia.com/gpu"] == {
            "name": "nvidia.com/gpu",
            "nominalQuota": "16",
            "borrowingLimit": "2",
        }
        assert second["nvidia.com/gpu"]["nominalQuota"] == "2"
        assert second["nvidia.com/gpu"]["borrowingLimit"] == "0"
        assert first["memory"]["nominalQuota"] == "102912Mi"
        assert second["memory"]["nominalQuota"] == "0Gi"
        # The file says nothing of CPUs: GPUs can be borrowed with those they need.
        assert "borrowingLimit" not in first["cpu"]

    def test_gangs_are_not_overtaken_for_ever(self) -> None:
        def strategy(name: str) -> str:
            found: str = named(PLATFORM, "ClusterQueue", name)["spec"][
                "queueingStrategy"
            ]
            return found

        assert strategy("train") == "StrictFIFO"
        assert strategy("ingest") == "BestEffortFIFO"

    def test_only_machines_that_stay_have_a_topology(self) -> None:
        """Kueue would never admit pods whose machines start for them."""
        fixed = replace(GPU_SERVE, min=6, max=6, warm=0, queue="serve")
        platform = example_platform(
            groups=(CPU_INGEST, GPU_TRAIN, fixed),
            queues=(
                Queue("train", {"nvidia.com/gpu": 16.0}),
                Queue("serve", {"nvidia.com/gpu": 6.0}),
            ),
        )

        def topology(name: str) -> str | None:
            found: str | None = named(platform, "ResourceFlavor", name)["spec"].get(
                "topologyName"
            )
            return found

        assert topology("gpu-serve") == "demo"
        assert topology("gpu-train") is None

    def test_a_queue_without_machines_is_refused(self) -> None:
        platform = example_platform(queues=(Queue("lost", {"cpu": 1.0}),))
        with pytest.raises(ConfigError, match=r"queues\.lost\.groups: no group uses"):
            kueue.objects(platform)

        queue = Queue("train", {"cpu": 1.0}, groups=("gpu-trian",))
        with pytest.raises(ConfigError, match="there is no group 'gpu-trian'"):
            kueue.objects(example_platform(queues=(queue,)))

    def test_kueue_looks_at_the_platforms_namespace_alone(self) -> None:
        text = kueue.values(PLATFORM)["managerConfig"]["controllerManagerConfigYaml"]
        found = yaml.safe_load(text)

        assert found["managedJobsNamespaceSelector"]["matchExpressions"] == [
            {
                "key": "kubernetes.io/metadata.name",
                "operator": "In",
                "values": ["ray-prod"],
            }
        ]
        assert found["manageJobsWithoutQueueName"] is False
        assert found["integrations"]["frameworks"] == ["pod", "deployment"]
        # Twice the longest cold start of the groups.
        assert found["waitForPodsReady"]["timeout"] == "840s"
        assert "enable" not in found["waitForPodsReady"]


class TestOperator:
    def test_values_are_for_the_installed_operator(self) -> None:
        assert version("dask-kubernetes") == operator_values.OPERATOR_VERSION

    def test_it_is_kept_to_the_namespace(self) -> None:
        values = operator_values.values(PLATFORM)

        assert values["rbac"]["cluster"] is False
        assert "--namespace=ray-prod" in values["kopfArgs"]
        assert "--all-namespaces" not in values["kopfArgs"]

    def test_values_are_those_of_the_chart(self) -> None:
        """A value that the chart does not know does nothing, and nobody hears of it."""
        import dask_kubernetes.operator as operator

        folder = "deployment/helm/dask-kubernetes-operator/values.yaml"
        path = f"{operator.__path__[0]}/{folder}"
        with open(path) as file:
            chart = yaml.safe_load(file)

        def unknown(given: Object, known: Object, at: str = "") -> Iterator[str]:
            for key, value in given.items():
                if key not in known:
                    yield f"{at}{key}"
                elif isinstance(value, dict) and known[key]:
                    yield from unknown(value, known[key], f"{at}{key}.")

        assert list(unknown(operator_values.values(PLATFORM), chart)) == []

    def test_its_namespace_admits_it(self) -> None:
        labels = named(PLATFORM, "Namespace", "ray-prod")["metadata"]["labels"]
        values = operator_values.values(PLATFORM)

        assert labels["pod-security.kubernetes.io/enforce"] == "restricted"
        profile = values["podSecurityContext"]["seccompProfile"]
        assert profile == {"type": "RuntimeDefault"}


class TestMonitors:
    @pytest.mark.parametrize("platform", [PLATFORM, tls_platform(), dask_platform()])
    def test_the_heads_service_is_selected_and_has_the_port(
        self, platform: Platform
    ) -> None:
        monitor = made(platform, "ServiceMonitor")[0]["spec"]
        pod, service = head_parts(platform)
        port = monitor["endpoints"][0]["port"]

        assert matches(monitor["selector"], service["metadata"]["labels"])
        found = {one["name"]: one for one in service["spec"]["ports"]}
        assert found[port]["targetPort"] in port_names(pod)
        for one in monitor["targetLabels"]:
            assert one in service["metadata"]["labels"]

    @pytest.mark.parametrize("platform", [PLATFORM, dask_platform()])
    def test_all_workers_are_selected_and_have_the_port(
        self, platform: Platform
    ) -> None:
        monitor = named(platform, "PodMonitor", "demo-workers")["spec"]
        for group in platform.groups:
            pod = worker_pod(platform, group.name)
            assert matches(monitor["selector"], pod["metadata"]["labels"])
            assert monitor["podMetricsEndpoints"][0]["port"] in port_names(pod)
            labels = pod["metadata"]["labels"]
            assert labels[names.GROUP] == group.name
            assert labels[names.PLATFORM] == "demo"

    def test_workers_are_not_the_head(self) -> None:
        monitor = named(PLATFORM, "PodMonitor", "demo-workers")["spec"]
        pod, _ = head_parts(PLATFORM)

        assert not matches(monitor["selector"], pod["metadata"]["labels"])

    def test_the_autoscaler_is_selected_and_has_the_port(self) -> None:
        monitor = named(PLATFORM, "PodMonitor", "demo-autoscaler")["spec"]
        pod = named(PLATFORM, "Deployment", "demo-autoscaler")["spec"]["template"]

        assert matches(monitor["selector"], pod["metadata"]["labels"])
        assert monitor["podMetricsEndpoints"][0]["port"] in port_names(pod)

    def test_the_token_is_that_of_the_platform(self) -> None:
        secrets = {one["metadata"]["name"] for one in render(PLATFORM).secrets}
        monitors = made(PLATFORM, "ServiceMonitor") + made(PLATFORM, "PodMonitor")
        found = [
            endpoint["authorization"]["credentials"]
            for one in monitors
            for endpoint in one["spec"].get("endpoints", [])
            + one["spec"].get("podMetricsEndpoints", [])
            if "authorization" in endpoint
        ]

        assert found == [{"name": "demo-token", "key": "token"}] * 2
        assert "demo-token" in secrets


def queries(platform: Platform) -> list[str]:
    """Of all alerts and panels."""
    files = monitoring.files(platform)
    rules = files["monitoring/alerts.yaml"][0]
    assert not isinstance(rules, str)
    board = files["monitoring/dashboard.json"]
    assert isinstance(board, str)
    panels = json.loads(board)["panels"]
    return [
        *(one["expr"] for one in rules["spec"]["groups"][0]["rules"]),
        *(target["expr"] for panel in panels for target in panel["targets"]),
    ]


#: Functions, operators and clauses that the queries may use.
WORDS = {"sum", "min", "max", "avg", "rate", "increase", "absent", "histogram_quantile"}
WORDS |= {"by", "and", "on"}
#: A series with its selector, or a word.
SERIES = re.compile(r"([a-zA-Z_][a-zA-Z0-9_]*)\{([^{}]*)\}")
CLAUSE = re.compile(r"\b(?:by|on) \(([^()]*)\)")
PAIRS = {")": "(", "}": "{", "]": "["}


def known_series() -> dict[str, MetricName]:
    """Name of a series -> its metric."""
    groups = (metric_names.AUTOSCALER, metric_names.NODES, metric_names.SERVE)
    metrics = [one for group in groups for one in group] + [metric_names.UP]
    return {sample: metric for metric in metrics for sample in metric.samples()}


@pytest.mark.parametrize(
    "query", sorted({*queries(PLATFORM), *queries(dask_platform())})
)
class TestQueries:
    def test_brackets_balance(self, query: str) -> None:
        is_open: list[str] = []
        for one in re.sub(r'"[^"]*"', '""', query):
            if one in PAIRS.values():
                is_open.append(one)
            elif one in PAIRS:
                assert is_open.pop() == PAIRS[one]
        assert is_open == []

    def test_series_are_known_and_chosen_by_labels_that_they_have(
        self, query: str
    ) -> None:
        known = known_series()
        found = SERIES.findall(query)
        assert found
        target = {"namespace", "job", "pod"}
        added = {label(one) for one in (names.PLATFORM, names.GROUP, names.GANG)}
        for name, inner in found:
            assert name in known
            wanted = re.findall(r'(\w+)=~?"', inner)
            labels = set(known[name].labels)
            assert set(wanted) <= labels | target | added
            assert 'namespace="ray-prod"' in inner
            assert 'rayshim_io_platform="demo"' in inner
            assert "{}" not in inner

    def test_there_is_nothing_else_in_it(self, query: str) -> None:
        rest = SERIES.sub("", query)
        rest = CLAUSE.sub("", rest)
        words = re.findall(r"[a-zA-Z_]\w*", re.sub(r"\[\w+\]", "", rest))
        assert set(words) <= WORDS

    def test_states_and_kinds_exist(self, query: str) -> None:
        for name, inner in SERIES.findall(query):
            given = dict(re.findall(r'(\w+)=~?"([^"]*)"', inner))
            if name == metric_names.WORKERS.name and "state" in given:
                states = given["state"].split("|")
                assert set(states) <= set(metric_names.WORKER_STATES)
            if name == metric_names.DECISIONS.name and "kind" in given:
                assert given["kind"] in metric_names.DECISION_KINDS
            if "group" in given:
                assert given["group"] in {one.name for one in PLATFORM.groups}


class TestAlerts:
    def rules(self, platform: Platform = PLATFORM) -> dict[str, Object]:
        found = made(platform, "PrometheusRule")[0]["spec"]["groups"][0]["rules"]
        return {one["alert"]: one for one in found}

    def test_each_says_what_happens_and_what_to_do(self) -> None:
        for one in self.rules().values():
            assert one["labels"]["severity"] in ("critical", "warning")
            assert len(one["annotations"]["summary"]) > 20
            assert len(one["annotations"]["description"]) > 20

    def test_what_must_be_noticed_is(self) -> None:
        assert set(self.rules()) == {
            "RayshimHeadDown",
            "RayshimAutoscalerDown",
            "RayshimDemandStale",
            "RayshimDemandInfeasible",
            "RayshimGangsGated",
            "RayshimDrainRefused",
            "RayshimKubernetesErrors",
            "RayshimTurnsSlow",
            "RayshimWorkersLate",
            "RayshimWorkersLost",
            "RayshimGpusIdleGpuTrain",
            "RayshimGpusIdleGpuServe",
            "RayshimServeLatency",
            "RayshimServeTooFew",
            "RayshimServeErrors1h",
            "RayshimServeErrors6h",
        }

    def test_idle_gpus_beyond_the_kept_ones_are_counted_in_dollars(self) -> None:
        found = self.rules()["RayshimGpusIdleGpuServe"]["expr"]

        # 6 and 1 warm are to be there; 0.8048 dollars an hour for each.
        assert found.endswith(" - 7) * 0.8048 > 0")

    def test_service_levels_are_those_of_the_file(self) -> None:
        rules = self.rules()

        assert rules["RayshimServeLatency"]["expr"].endswith(" > 80")
        assert " > 0.0144 and " in rules["RayshimServeErrors1h"]["expr"]
        assert rules["RayshimServeTooFew"]["expr"].endswith(" < 6")
        assert rules["RayshimServeTooFew"]["for"] == "600s"

    def test_a_platform_of_dask_has_those_that_it_can_have(self) -> None:
        found = self.rules(dask_platform(serve=None))

        assert "RayshimHeadDown" in found
        assert not any("Gpus" in name or "Serve" in name for name in found)


class TestDashboard:
    def test_panels_have_places_of_their_own(self) -> None:
        files = monitoring.files(PLATFORM)
        text = files["monitoring/dashboard.json"]
        assert isinstance(text, str)
        board = json.loads(text)
        places = {(one["gridPos"]["x"], one["gridPos"]["y"]) for one in board["panels"]}

        assert len(places) == len(board["panels"])
        assert len({one["id"] for one in board["panels"]}) == len(board["panels"])
        assert len(board["uid"]) <= 40

    def test_the_config_map_has_the_same(self) -> None:
        files = monitoring.files(PLATFORM)
        found = files["monitoring/dashboard.yaml"][0]
        assert not isinstance(found, str)

        kubernetes_validate.validate(found, "1.33", strict=True)
        assert found["data"] == {
            "rayshim-demo.json": files["monitoring/dashboard.json"]
        }
        assert found["metadata"]["labels"]["grafana_dashboard"] == "1"


def test_metric_names_are_as_prometheus_wants_them() -> None:
    for name, metric in known_series().items():
        assert re.fullmatch(r"[a-z_]+", name)
        assert metric.kind != "counter" or name.endswith("_total")
        assert metric.description.endswith(".")
