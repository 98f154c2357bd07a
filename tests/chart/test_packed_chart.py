"""The chart as `make release` packs it: it is the folder's, and a real API server takes what it installs."""

from __future__ import annotations

import runpy
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.apiserver import api_server
from support.chart import CHART, NAMESPACE, helm, render
from support.system import ROOT, until

from remotegpu.api.kubernetes import API_VERSION

EVERY_VALUE: dict[str, Any] = yaml.safe_load((Path(__file__).parent / "every-value.yaml").read_text())


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made: Path | None = runpy.run_path(str(ROOT / "tools" / "release.py"))["make_chart"](
        tmp_path_factory.mktemp("dist")
    )
    if made is None:
        pytest.skip("Helm is not built; `make cluster-programs` builds it")
    return made


@pytest.mark.parametrize("values", [{}, EVERY_VALUE], ids=["defaults", "every-value"])
def test_it_is_rendered_as_the_folder_is(packed: Path, values: dict[str, Any], tmp_path: Path) -> None:
    folders = render(values, tmp_path)
    assert render(values, tmp_path, chart=packed) == folders
    with tarfile.open(packed) as files:
        assert not [name for name in files.getnames() if "/ci/" in name]
    assert len([each for each in folders if each["kind"] == "CustomResourceDefinition"]) == 2


def test_it_is_installed_and_upgraded_and_a_claim_is_accepted(packed: Path) -> None:
    with api_server() as server:
        # Nothing here could run a hook's pod.
        options = ("--namespace", NAMESPACE, "--create-namespace", "--no-hooks")
        helm("install", "remotegpu", str(packed), *options, kubeconfig=server.kubeconfig)
        for values in sorted((CHART / "ci").glob("*-values.yaml")):
            helm("upgrade", "remotegpu", str(packed), *options, f"--values={values}", kubeconfig=server.kubeconfig)
        server.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")
        installed = server.kubectl("get", "deployments,daemonsets", "-n", NAMESPACE, "-o", "name").stdout.split()
        assert sorted(installed) == [
            "daemonset.apps/remotegpu-deviceplugin",
            "deployment.apps/remotegpu-operator",
            "deployment.apps/remotegpu-webhook",
        ]
        metadata = {"name": "mine", "namespace": "default"}
        body = {"apiVersion": API_VERSION, "kind": "GPUClaim", "metadata": metadata, "spec": {"fraction": "0.5"}}
        # Established comes a moment before the objects are served.
        until(lambda: server.kubectl("get", "gpuclaims", check=False).returncode == 0, 30, "GPUClaims are served")
        server.apply(body)
        assert server.kubectl("get", "gpuclaim", "mine", "-o", "jsonpath={.spec.pool}").stdout == "default"
