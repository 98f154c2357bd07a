"""Every value does something, is described and is checked."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.chart import CHART, Object, helm, named, render

EVERY_VALUE: dict[str, Any] = yaml.safe_load((Path(__file__).parent / "every-value.yaml").read_text())
DEFAULTS: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA: dict[str, Any] = yaml.safe_load((CHART / "values.schema.yaml").read_text())
GENERATOR = CHART.parents[1] / "tools" / "generate_values_schema.py"

Path_ = tuple[str, ...]


def described(schema: dict[str, Any], path: Path_ = ()) -> Iterator[tuple[Path_, dict[str, Any]]]:
    """The values that are set one by one, each with its schema."""
    for name, each in schema["properties"].items():
        if "properties" in each:
            yield from described(each, (*path, name))
        elif (*path, name) != ("global",):
            yield (*path, name), each


def at(values: dict[str, Any], path: Path_) -> Any:
    for name in path:
        values = values[name]
    return values


def without(path: Path_) -> dict[str, Any]:
    values = copy.deepcopy(EVERY_VALUE)
    del at(values, path[:-1])[path[-1]]
    return values


VALUES = dict(described(SCHEMA))


@pytest.mark.parametrize("path", VALUES, ids=".".join)
def test_each_value_has_a_default_and_a_description(path: Path_) -> None:
    at(DEFAULTS, path)
    schema = VALUES[path]
    while "$ref" in schema and "description" not in schema:
        schema = SCHEMA["definitions"][schema["$ref"].split("/")[-1]]
    assert schema["description"]


@pytest.fixture(scope="module")
def with_every_value(tmp_path_factory: pytest.TempPathFactory) -> list[Object]:
    return render(EVERY_VALUE, tmp_path_factory.mktemp("values"))


@pytest.mark.parametrize("path", VALUES, ids=".".join)
def test_each_value_changes_what_is_rendered(path: Path_, with_every_value: list[Object], tmp_path: Path) -> None:
    if path == ("crds", "enabled"):
        changed = render({"crds": {"enabled": False}}, tmp_path)
        assert not [thing for thing in changed if thing["kind"] == "CustomResourceDefinition"]
        return
    if path == ("networkPolicy", "enabled"):
        without_policies = render({"networkPolicy": {"enabled": False}}, tmp_path)
        assert not [thing for thing in without_policies if thing["kind"] == "NetworkPolicy"]
        return
    assert at(EVERY_VALUE, path) != at(DEFAULTS, path)
    assert render(without(path), tmp_path) != with_every_value


def test_no_value_is_forgotten() -> None:
    def leaves(schema: dict[str, Any], values: dict[str, Any]) -> None:
        assert sorted(values) == sorted(name for name in schema["properties"] if name != "global")
        for name, each in schema["properties"].items():
            if "properties" in each:
                assert each["additionalProperties"] is False
                leaves(each, values[name])

    leaves(SCHEMA, DEFAULTS)
    leaves(SCHEMA, EVERY_VALUE)


@pytest.mark.parametrize("file", ["values.schema.json", "VALUES.md"])
def test_what_is_generated_is_up_to_date(file: str, tmp_path: Path) -> None:
    subprocess.run([sys.executable, GENERATOR, tmp_path], check=True)
    assert (CHART / file).read_text() == (tmp_path / file).read_text(), "run `make generate`"


@pytest.mark.parametrize(
    ("setting", "place", "names"),
    [
        ("operator.replica=3", "'/operator'", ["'replica'"]),
        ("operator.replicas=0", "'/operator/replicas'", []),
        ("image.pullPolicy=Sometimes", "'/image/pullPolicy'", ["'Always'", "'IfNotPresent'", "'Never'"]),
        ("pools.default.softwear.gpus=2", "'/pools/default'", ["'softwear'"]),
        ("pools.default.backend=rocm", "'/pools/default/backend'", ["'software'", "'cuda'"]),
        ("pools.With_underscore.backend=cuda", "at ''", ["'With_underscore'"]),
        ("devicePlugin.kubeletFolder=var/lib/kubelet", "'/devicePlugin/kubeletFolder'", []),
    ],
)
def test_a_wrong_value_is_refused_with_its_place(setting: str, place: str, names: list[str]) -> None:
    refusal = helm("template", "remotegpu", str(CHART), "--kube-version=1.34.0", "--set", setting, check=False)
    assert refusal.returncode
    assert all(name in refusal.stderr for name in (place, *names)), refusal.stderr


@pytest.mark.parametrize("what", ["serviceMonitor", "prometheusRule"])
def test_monitoring_without_its_api_is_refused_with_the_next_step(what: str) -> None:
    setting = f"metrics.{what}.enabled=true"
    refusal = helm("template", "remotegpu", str(CHART), "--kube-version=1.34.0", "--set", setting, check=False)
    assert refusal.returncode
    assert f"metrics.{what}.enabled" in refusal.stderr and "Prometheus operator" in refusal.stderr


def test_an_old_cluster_is_refused() -> None:
    refusal = helm("template", "remotegpu", str(CHART), "--kube-version=1.29.9", check=False)
    assert refusal.returncode
    assert "kubeVersion" in refusal.stderr and ">=1.30.0-0" in refusal.stderr


def test_lint_finds_nothing(tmp_path: Path) -> None:
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump(EVERY_VALUE | {"metrics": DEFAULTS["metrics"]}))
    for values in ([], [f"--values={file}"]):
        helm("lint", "--strict", "--kube-version=1.34.0", str(CHART), *values)


def test_the_package_has_the_definitions_inside(tmp_path: Path) -> None:
    """In the repository they are a link to the folder crds/."""
    helm("package", str(CHART), "--destination", str(tmp_path))
    package = next(tmp_path.glob("remotegpu-*.tgz"))
    assert render({}, tmp_path, chart=package) == render({}, tmp_path)


def test_labels_of_a_user_do_not_take_the_place_of_ours(tmp_path: Path) -> None:
    objects = render({"operator": {"podLabels": {"app.kubernetes.io/component": "mine", "team": "a"}}}, tmp_path)
    deployment = named(objects, "Deployment", "remotegpu-operator")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert labels["team"] == "a"
    assert deployment["spec"]["selector"]["matchLabels"].items() <= labels.items()
