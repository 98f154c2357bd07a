"""The examples for machines without a GPU: the unit's command runs unchanged, the model's server on a share."""

from __future__ import annotations

import configparser
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest
import yaml
from support.system import REMOTEGPU, ROOT, free_port, until

MACHINES = ROOT / "examples" / "15-machines"
UNIT = MACHINES / "train.service"
CLOUD = yaml.safe_load((MACHINES / "cloud-init.yaml").read_text())
FILES = {each["path"]: each for each in CLOUD["write_files"]}


def setting(name: str, home: Path) -> list[str]:
    """All values of a setting of [Service], for a user of this home."""
    found = re.findall(rf"^{name}=(.*)$", UNIT.read_text(), re.MULTILINE)
    return [each.replace("%h", str(home)) for each in found]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The home folder after the example's commands, with this checkout in place of the wheel."""
    programs = tmp_path / "remotegpu" / "bin"
    programs.mkdir(parents=True)
    (programs / "remotegpu").symlink_to(REMOTEGPU)
    (programs / "python").symlink_to(sys.executable)
    (tmp_path / "train.py").write_text("import ctypes; print('cuInit:', ctypes.CDLL('libcuda.so.1').cuInit(0))")
    return tmp_path


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="no systemd-analyze here")
def test_systemd_reads_the_unit(home: Path) -> None:
    environment = os.environ | {"HOME": str(home), "XDG_RUNTIME_DIR": str(home)}
    command = ["systemd-analyze", "verify", "--user", "--man=no", str(UNIT)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, "train.service" in done.stderr) == (0, False), done.stderr


def test_the_units_command_runs_on_an_appliance_with_tls_and_tokens(home: Path) -> None:
    folder, port = home / ".config" / "remotegpu", free_port()
    subprocess.run([REMOTEGPU, "appliance", "init", folder, "--host", "127.0.0.1"], check=True, capture_output=True)
    variables = dict(each.split("=", 1) for each in setting("Environment", home))
    assert variables.pop("REMOTEGPU_APPLIANCE").endswith(":7070")
    assert {name: Path(file).exists() for name, file in variables.items()} == dict.fromkeys(variables, True)
    (command,) = setting("ExecStart", home)
    secrets = [f"--tokens={folder / 'tokens'}", f"--cert={folder / 'server.pem'}", f"--key={folder / 'server.key'}"]
    listening = [REMOTEGPU, "appliance", f"--listen=127.0.0.1:{port}", *secrets]
    with (home / "log").open("wb") as log, subprocess.Popen(listening, stdout=log, stderr=log) as appliance:
        try:
            until(lambda: accepts(port) or appliance.poll() is not None, 60, "it listens")
            environment = os.environ | variables | {"REMOTEGPU_APPLIANCE": f"127.0.0.1:{port}"}
            done = subprocess.run(shlex.split(command), env=environment, capture_output=True, text=True, timeout=60)
            assert (done.returncode, done.stdout) == (0, "cuInit: 0\n"), done.stderr
            Path(variables["REMOTEGPU_TOKEN_FILE"]).write_text("another")
            refused = subprocess.run(shlex.split(command), env=environment, capture_output=True, text=True, timeout=60)
            (final,) = setting("RestartPreventExitStatus", home)
            assert str(refused.returncode) in final.split(), refused.stderr
        finally:
            appliance.terminate()


def test_cloud_init_lays_down_what_the_unit_needs() -> None:
    home = Path("/home/gpu")
    parsed = configparser.ConfigParser(strict=False, interpolation=None)
    parsed.optionxform = str  # type: ignore[assignment, method-assign]
    parsed.read_string(UNIT.read_text())
    assert set(parsed) == {"DEFAULT", "Unit", "Service", "Install"}
    assert str(home / ".config" / "systemd" / "user" / UNIT.name) in FILES
    needed = [each.split("=", 1)[1] for each in setting("Environment", home) if "/" in each]
    (command,) = setting("ExecStart", home)
    needed += [word for word in shlex.split(command) if word.startswith("/") and "/bin/" not in word]
    assert needed and set(needed) <= set(FILES)
    assert FILES[next(each for each in needed if each.endswith("token"))]["permissions"] == "0600"
    assert (MACHINES / "cloud-init.yaml").read_text().startswith("#cloud-config\n")
    made = f"runuser -u gpu -- python3 -m venv {shlex.split(command)[0].removesuffix('/bin/remotegpu')}"
    assert made in CLOUD["runcmd"]


def test_the_model_answers_from_a_share(tmp_path: Path) -> None:
    port = free_port()
    program = str(ROOT / "examples" / "14-inference" / "serve.py")
    command = [str(REMOTEGPU), "run", "-p", "0.25", "--", sys.executable, program]
    with (tmp_path / "log").open("wb") as log, subprocess.Popen([*command, str(port)], stdout=log, stderr=log) as model:
        try:
            until(lambda: model.poll() is not None or asked(port) is not None, 120, "the model answers")
            numbers = [each / 64 for each in range(64)]
            expected = np.random.default_rng(1).standard_normal((10, 64)) @ numbers
            assert model.poll() is None, (tmp_path / "log").read_text()
            answer = asked(port, numbers)
            assert answer is not None
            np.testing.assert_allclose(answer["scores"], expected)
            with pytest.raises(urllib.error.HTTPError, match="400"):
                asked(port, [1.0])
        finally:
            model.terminate()


def accepts(port: int) -> bool:
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0


def asked(port: int, numbers: list[float] | None = None) -> dict[str, list[float]] | None:
    """Posts numbers to the example's server, or gets its page. Returns the JSON answer; None where nothing listens."""
    body = json.dumps(numbers).encode() if numbers else None
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/", data=body, timeout=10) as answer:
            found: dict[str, list[float]] = json.load(answer)
            return found
    except urllib.error.HTTPError:
        raise
    except (urllib.error.URLError, ConnectionError):
        return None
