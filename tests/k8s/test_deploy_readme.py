"""The page on deploying, and the Dockerfile, say what is there."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from rayshim.k8s.cost import monthly_costs
from rayshim.k8s.loading import load_platform
from rayshim.k8s.render import render
from rayshim.k8s.rendering import (
    base,
    device_plugin,
    karpenter,
    kueue,
    operator_values,
)

DEPLOY = Path(__file__).parents[2] / "k8s" / "deploy"
ROOT = DEPLOY.parents[1]
TEXT = (DEPLOY / "README.md").read_text()
DOCKERFILE = (DEPLOY / "Dockerfile").read_text()
#: Its instructions, each in one line, without the text of files that it makes.
INSTRUCTIONS = [
    one
    for one in re.sub(
        r"(?s)\nCOPY [^\n]*<<'SCRIPT'.*?\nSCRIPT$|\\\n\s*", "", DOCKERFILE, flags=re.M
    ).splitlines()
    if one and not one.startswith("#")
]


@pytest.mark.slow
def test_tables_are_up_to_date() -> None:
    script = ROOT / "docs" / "generate_deploy_readme.py"
    done = subprocess.run([sys.executable, str(script), "--check"], check=False)
    assert done.returncode == 0, "run: python docs/generate_deploy_readme.py"


@pytest.mark.parametrize(
    "file",
    ["platform.yaml", "overlays/10x/platform.yaml", "overlays/eu/platform.yaml"],
)
def test_costs_are_those_that_plan_prints(file: str) -> None:
    assert monthly_costs(load_platform(DEPLOY / file)).to_markdown() in TEXT


def test_links_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", TEXT)

    assert links
    for link in links:
        assert "://" in link or (DEPLOY / link).exists(), link


def test_files_in_commands_are_rendered() -> None:
    """Commands name files of the render, or files that they make themselves."""
    rendered = set(render(load_platform(DEPLOY / "platform.yaml")).files)
    folders = {path.partition("/")[0] for path in rendered}
    named = set(re.findall(r"[\w-]+/[\w./-]+\.(?:yaml|json)", TEXT))
    ours = {one for one in named if one.partition("/")[0] in folders}

    assert len(ours) > 10
    assert ours <= rendered


def test_charts_are_installed_in_the_versions_of_their_values() -> None:
    platform = load_platform(DEPLOY / "platform.yaml")
    for chart in (karpenter.CHART, device_plugin.CHART, kueue.CHART):
        command = f"{chart.release} {chart.chart} --version {chart.version}"
        assert f"helm upgrade --install {command} --namespace {chart.namespace}" in TEXT
    operator = (
        f"helm upgrade --install {operator_values.RELEASE} "
        f"dask/dask-kubernetes-operator --version {operator_values.OPERATOR_VERSION} "
        f"--namespace {platform.namespace}"
    )
    assert operator in TEXT
    assert f"karpenter-provider-aws/v{karpenter.CHART.version}/" in TEXT


def test_steps_come_in_an_order_that_works() -> None:
    steps = [
        "docker push",
        "eksctl create cluster",
        "helm upgrade --install karpenter",
        "helm upgrade --install nvidia-device-plugin",
        "helm upgrade --install cert-manager",
        "helm upgrade --install kueue",
        "kubectl apply -f base/namespace.yaml",
        "kubectl apply --server-side",
        "helm upgrade --install dask-operator",
        "helm upgrade --install prometheus",
        "rayshim k8s up",
        "rayshim k8s status",
        "rayshim k8s drill",
        "rayshim k8s down",
        "eksctl delete cluster",
    ]
    install = TEXT[TEXT.index("## Install") :]
    places = [install.index(one) for one in steps]

    assert places == sorted(places)


def test_what_is_not_tested_is_said() -> None:
    missing = TEXT[TEXT.index("## What the tests do not cover") :]

    for word in ("Kueue itself", "emulator", "Karpenter", "EKS", "GPUs", "images"):
        assert word in missing


def test_verbs_and_options_exist() -> None:
    from rayshim.k8s.cli import k8s

    commands = re.findall(r"rayshim k8s (\w+)((?: [^\n`;,]*)?)", TEXT)
    assert len(commands) > 8
    for name, rest in commands:
        command = k8s.commands[name]
        known = {one for option in command.params for one in option.opts}
        assert set(re.findall(r"(?<= )--[\w-]+", rest)) <= known, (name, rest)


class TestDockerfile:
    def stages(self) -> dict[str, str]:
        """Name of a stage -> what it is made from."""
        return dict(
            (name, image)
            for image, name in re.findall(r"^FROM (\S+) AS (\S+)$", DOCKERFILE, re.M)
        )

    def of_stage(self, name: str) -> list[str]:
        """Instructions of a stage."""
        found: list[str] = []
        is_there = False
        for one in INSTRUCTIONS:
            if one.startswith("FROM "):
                is_there = one.endswith(f" AS {name}")
            elif is_there:
                found.append(one)
        return found

    def test_targets_are_there(self) -> None:
        assert {"cpu", "gpu"} <= set(self.stages())

    def test_images_come_in_fixed_versions_from_the_usual_place(self) -> None:
        given = dict(re.findall(r"^ARG (\w+_IMAGE)=(\S+)$", DOCKERFILE, re.M))

        assert set(given) == {"PYTHON_IMAGE", "CUDA_IMAGE"}
        for image in given.values():
            name, _, tag = image.partition(":")
            assert re.search(r"\d+\.\d+\.\d+", tag)
            assert "." not in name.partition("/")[0]
        outside = [one for one in self.stages().values() if one.startswith("$")]
        assert {one.strip("${}") for one in outside} == set(given)

    def test_both_have_the_same_python(self) -> None:
        assert self.stages()["cpu"] == "python"
        assert "COPY --from=python /usr/local /usr/local" in self.of_stage("gpu")

    @pytest.mark.parametrize("target", ["cpu", "gpu"])
    def test_processes_run_as_the_user_of_the_pods(self, target: str) -> None:
        user = f"USER {base.USER_ID}:{base.USER_ID}"
        found = self.of_stage(target)

        assert user in found
        assert not any(one.startswith("RUN") for one in found[found.index(user) :])

    @pytest.mark.parametrize("target", ["cpu", "gpu"])
    def test_the_first_process_of_a_pod_is_tini(self, target: str) -> None:
        """Commands of pods replace an image's entrypoint."""
        found = self.of_stage(target)
        programs = set(re.findall(r"/opt/first/(\w+)", DOCKERFILE))
        rendered = render(load_platform(DEPLOY / "platform.yaml")).objects
        cluster = next(one for one in rendered if one["kind"] == "DaskCluster")
        scaler = next(one for one in rendered if one["kind"] == "Deployment")
        specs = [cluster["spec"][one]["spec"] for one in ("scheduler", "worker")]
        specs.append(scaler["spec"]["template"]["spec"])

        for spec in specs:
            assert spec["containers"][0]["command"][0] in programs
        assert "COPY --from=build /opt/first /opt/first" in found
        assert any(one.startswith("ENV PATH=/opt/first:") for one in found)
        assert " tini" in next(one for one in found if "apt-get" in one)

    def test_the_wrapper_starts_the_program_of_its_name(self, tmp_path: Path) -> None:
        inner = re.search(r"<<'SCRIPT' \S+\n(.*?)\nSCRIPT$", DOCKERFILE, re.M | re.S)
        assert inner is not None
        programs = tmp_path / "bin"
        programs.mkdir()
        (programs / "dask").write_text('#!/bin/sh\necho "dask $*"\n')
        (programs / "dask").chmod(0o755)
        wrapper = tmp_path / "dask"
        wrapper.write_text(inner[1].replace("/opt/rayshim/bin", str(programs)))
        wrapper.chmod(0o755)

        done = subprocess.run(
            [wrapper, "worker", "a b"], capture_output=True, text=True, check=True
        )

        assert done.stdout == "dask worker a b\n"

    def test_what_is_copied_exists_and_is_not_left_out(self) -> None:
        ignored = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
        sources = [
            source
            for one in self.of_stage("build")
            if one.startswith("COPY ")
            for source in one.split()[1:-1]
        ]

        assert sources
        for source in sources:
            assert (ROOT / source).exists()
            assert f"!{source}" in ignored

    def test_extras_exist(self) -> None:
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        found = re.search(r"^ARG EXTRAS=(\S+)$", DOCKERFILE, re.M)

        assert found is not None
        extras = set(found[1].split(","))
        assert extras <= set(project["optional-dependencies"])
        assert {"redis", "k8s"} <= extras

    def test_images_of_the_example_are_its_targets(self) -> None:
        platform = load_platform(DEPLOY / "platform.yaml")

        for target, image in (
            ("cpu", platform.images.cpu),
            ("gpu", platform.images.gpu),
        ):
            assert f"--target {target} -t {image} ." in TEXT
            assert f"docker push {image}" in TEXT
