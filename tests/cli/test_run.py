"""`remotegpu run`: the command gets its share and its environment, and otherwise behaves as without us."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.stand_in import StandIn, all_back
from support.system import REMOTEGPU, REMOTEGPU_RUN, until

from remotegpu.api.failures import ApplianceError
from remotegpu.api.quantities import Ask
from remotegpu.rpc import own_token

GIB = 1 << 30
# A run that Python watches.
WATCHED = [REMOTEGPU, "run", "--report-file", "/dev/null"]


def environment_of(
    run: list[str], appliance: StandIn, *options: str, env: dict[str, str] | None = None
) -> dict[str, str]:
    script = "import json, os; print(json.dumps(dict(os.environ)))"
    command = [*run, *options, "--", sys.executable, "-c", script]
    done = subprocess.run(command, env=appliance.environment | (env or {}), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    seen: dict[str, str] = json.loads(done.stdout)
    return seen


def token_of(appliance: StandIn) -> str:
    host, _, port = appliance.endpoint.rpartition(":")
    found = own_token.find(host, int(port))
    assert found is not None
    return found[1]


def test_the_environment_of_a_share(run: list[str], appliance: StandIn, dist: Path) -> None:
    own = {"LD_LIBRARY_PATH": "/mine", "REMOTEGPU_TOKEN": token_of(appliance), "CUDA_VISIBLE_DEVICES": "0"}
    with all_back(appliance):
        seen = environment_of(run, appliance, "--appliance", appliance.endpoint, "-p", "0.25", env=own)
    (share,) = json.loads(seen["REMOTEGPU_SHARES"])
    assert share["endpoint"] == appliance.endpoint
    assert (len(share["lease_id"]), len(share["lease_secret"]), share["ca"]) == (32, 64, None)
    assert seen["LD_LIBRARY_PATH"] == f"{dist / 'client'}:/mine"
    assert seen["PATH"].startswith(f"{dist / 'bin'}:")
    assert seen["CUDA_VISIBLE_DEVICES"] == "0", "it is the client's to understand"
    assert (seen["CUPY_COMPILE_WITH_PTX"], seen["USE_PYTORCH_KERNEL_CACHE"]) == ("1", "0")
    assert seen["TRITON_PTXAS_PATH"] == seen["TRITON_PTXAS_BLACKWELL_PATH"] == str(dist / "native" / "ptxas")
    assert not {"REMOTEGPU_TOKEN", "GRPC_VERBOSITY", "GRPC_ENABLE_FORK_SUPPORT"} & set(seen)


def test_a_setting_of_the_user_stays(run: list[str], appliance: StandIn) -> None:
    seen = environment_of(run, appliance, "-a", appliance.endpoint, "-p", "0.25", env={"TRITON_PTXAS_PATH": "/mine"})
    assert seen["TRITON_PTXAS_PATH"] == "/mine"


def test_managed_memory_is_limited_by_option_or_environment(run: list[str], appliance: StandIn) -> None:
    share = ("-a", appliance.endpoint, "-p", "0.25")
    own = {"REMOTEGPU_MANAGED_MIB": "7"}
    assert "REMOTEGPU_MANAGED_MIB" not in environment_of(run, appliance, *share)
    assert environment_of(run, appliance, *share, env=own)["REMOTEGPU_MANAGED_MIB"] == "7"
    seen = environment_of(run, appliance, *share, "--managed-memory", "1GiB", env=own)
    assert seen["REMOTEGPU_MANAGED_MIB"] == "1024"


@pytest.mark.parametrize(
    ("name", "ours", "users"),
    [("NCCL_P2P_LEVEL", "SYS", "LOC"), ("NCCL_RUNTIME_CONNECT", "0", "1"), ("NCCL_SET_THREAD_NAME", "1", "0")],
)
def test_ranks_of_nccl_fail_at_the_start_unless_the_user_says(
    run: list[str], appliance: StandIn, name: str, ours: str, users: str
) -> None:
    assert environment_of(run, appliance, "-a", appliance.endpoint, "-p", "0.1")[name] == ours
    assert environment_of(run, appliance, "-a", appliance.endpoint, "-p", "0.1", env={name: users})[name] == users


def test_plugins_of_frameworks_are_found_behind_the_users_modules(
    run: list[str], appliance: StandIn, dist: Path
) -> None:
    ours = str(dist / "frameworks")
    assert environment_of(run, appliance, "-a", appliance.endpoint, "-p", "0.1")["PYTHONPATH"] == ours
    assert (
        environment_of(run, appliance, "-a", appliance.endpoint, "-p", "0.1", env={"PYTHONPATH": "/mine"})["PYTHONPATH"]
        == f"/mine:{ours}"
    )


def test_stand_ins_are_loaded_before_what_the_user_preloads(run: list[str], appliance: StandIn, dist: Path) -> None:
    stand_in = dist / "native" / "stand-ins" / "libempty.so.1"
    stand_in.parent.mkdir(exist_ok=True)
    compiler = ["cc", "-shared", "-nostdlib", "-x", "c", "/dev/null", "-o", str(stand_in)]
    subprocess.run(compiler, check=True)
    seen = environment_of(run, appliance, "-a", appliance.endpoint, "-p", "0.1", env={"LD_PRELOAD": "libc.so.6"})
    assert seen["LD_PRELOAD"] == f"{stand_in}:libc.so.6"


def test_the_environment_of_a_native_run(run: list[str], appliance: StandIn, dist: Path) -> None:
    seen = environment_of(run, appliance, "--native", "-n", "2", "-p", "0.25")
    assert seen["LD_LIBRARY_PATH"].split(":")[0] == str(dist / "native")
    assert (seen["REMOTEGPU_SOFTGPU_DEVICES"], seen["REMOTEGPU_SOFTGPU_MEMORY"]) == ("2", str(2 * GIB))
    assert "REMOTEGPU_SHARES" not in seen


@pytest.mark.parametrize(
    ("options", "memory"), [([], 4 * GIB), (["-p", "0.5"], 2 * GIB), (["-m", "1GiB"], GIB), (["-m", "6GiB"], 6 * GIB)]
)
def test_native_memory_follows_the_environment_and_the_share(
    run: list[str], appliance: StandIn, options: list[str], memory: int
) -> None:
    seen = environment_of(run, appliance, "--native", *options, env={"REMOTEGPU_SOFTGPU_MEMORY": "4GiB"})
    assert seen["REMOTEGPU_SOFTGPU_MEMORY"] == str(memory)


# An appliance whose leases live 3 s without a holder, as those of others live 10 s.
BRIEF = (
    "import sys; from remotegpu.appliance.leases import leases; from remotegpu.cli import main; "
    "leases.HOLD_SECONDS = 3.0; del sys.argv[0]; main()"
)


@pytest.fixture
def brief(dist: Path) -> Iterator[StandIn]:
    with StandIn(dist, "--gpus", "2", prefix=(sys.executable, "-c", BRIEF)) as it:
        yield it


def test_the_share_is_held_while_the_command_runs(run: list[str], brief: StandIn) -> None:
    appliance = brief
    with all_back(appliance), running(run, appliance, "-n", "2", "-p", "0.5", "--", "sleep", "60") as process:
        until(lambda: appliance.leased == GIB, 10, "both halves are leased")
        (lease,) = appliance.client.inventory().leases
        holders = [process.pid, *map(int, Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split())]
        assert any(lease.client.endswith(f"pid {holder} sleep 60") for holder in holders)
        assert list(lease.gpus) == [0, 1]
        appliance.lease(Ask(milli_per_gpu=100), hold=False)
        assert appliance.leased > GIB
        until(lambda: len(appliance.client.inventory().leases) == 1, 10, "the one that nobody holds has expired")
        assert appliance.leased == GIB, "it outlives a younger lease that nobody holds"
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == -signal.SIGTERM


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_the_share_comes_back_when_we_are_killed(run: list[str], appliance: StandIn, how: signal.Signals) -> None:
    with all_back(appliance), running(run, appliance, "-p", "0.5", "--", "sleep", "60") as process:
        until(lambda: children_of(process.pid), 10, "the command runs")
        process.send_signal(how)
        process.wait(10)


class running:  # noqa: N801
    """A `run` in the background, in a process group of its own."""

    def __init__(self, run: list[str], appliance: StandIn, *arguments: str) -> None:
        self._command = [*run, "--appliance", appliance.endpoint, *arguments]
        self._environment = appliance.environment

    def __enter__(self) -> subprocess.Popen[str]:
        self._process = subprocess.Popen(
            self._command,
            env=self._environment,
            start_new_session=True,
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        return self._process

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()


@pytest.mark.parametrize(
    "started",
    [[*WATCHED, "--native"], [*WATCHED, "-p", "0.1"], [REMOTEGPU_RUN, "-p", "0.1"], [REMOTEGPU_RUN, "--native"]],
    ids=["python-native", "python", "rust", "rust-native"],
)
@pytest.mark.parametrize(
    ("script", "code"), [("exit 0", 0), ("exit 7", 7), ("exit 255", 255), ("kill -TERM $$", -15), ("kill -KILL $$", -9)]
)
def test_exit_codes_pass_through(appliance: StandIn, script: str, code: int, started: list[str]) -> None:
    with all_back(appliance):
        assert appliance.start([*started, "--", "sh", "-c", script]).returncode == code


def test_output_and_input_are_the_commands_own(run: list[str], appliance: StandIn) -> None:
    command = [*run, "-p", "0.1", "cat", "-"]
    env = {**appliance.environment, "REMOTEGPU_APPLIANCE": appliance.endpoint}
    done = subprocess.run(command, env=env, input="through\n", capture_output=True, text=True, timeout=20)
    assert (done.returncode, done.stdout, done.stderr) == (0, "through\n", "")


REPORTER = """
import signal, sys, time
for number in map(signal.Signals, {numbers}):
    signal.signal(number, lambda n, _: print(signal.Signals(n).name, flush=True))
print("ready", flush=True)
while True:
    time.sleep(0.1)
"""


def test_signals_reach_the_command_once(run: list[str], appliance: StandIn) -> None:
    numbers = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT]
    script = REPORTER.format(numbers=[int(number) for number in numbers])
    with running(run, appliance, "-p", "0.1", "--", sys.executable, "-c", script) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        for number in numbers:
            process.send_signal(number)
            assert process.stdout.readline().strip() == number.name


def test_stopping_and_continuing(run: list[str], appliance: StandIn) -> None:
    """Ctrl-Z and fg of a shell: the command stops, `run` stops with it, and both go on."""
    with running(run, appliance, "-p", "0.1", "--", "sleep", "60") as process:
        child = until(lambda: children_of(process.pid), 10, "the command runs")[0]
        os.killpg(process.pid, signal.SIGTSTP)
        # The group is an orphaned one, where the terminal's stop is ignored; a direct stop is not.
        os.kill(child, signal.SIGSTOP)
        until(lambda: state_of(child) == state_of(process.pid) == "T", 5, "both are stopped")
        os.kill(process.pid, signal.SIGCONT)
        until(lambda: "T" not in (state_of(child), state_of(process.pid)), 5, "both go on")
        os.kill(child, signal.SIGKILL)
        assert process.wait(10) == -signal.SIGKILL


def children_of(pid: int) -> list[int]:
    """Without the program that holds the share."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in children if Path(f"/proc/{child}/exe").resolve().name != "remotegpu-run"]


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


IN_TERMINAL = """
import fcntl, os, sys, termios
os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""


def test_ctrl_c_in_a_terminal_reaches_the_command_once(run: list[str], appliance: StandIn) -> None:
    """The terminal sends it to both. Passed on by `run`, it would come twice, at which many tools stop."""
    script = REPORTER.format(numbers=[int(signal.SIGINT), int(signal.SIGUSR1)])
    ours, theirs = pty.openpty()
    command = [*run, "-a", appliance.endpoint, "-p", "0.1", "--", sys.executable, "-c", script]
    environment = appliance.environment
    process = subprocess.Popen(
        [sys.executable, "-c", IN_TERMINAL, *command], stdin=theirs, stdout=theirs, stderr=theirs, env=environment
    )
    os.close(theirs)
    seen = b""
    while b"ready" not in seen:
        seen += os.read(ours, 1024)
    os.write(ours, b"\x03")
    while b"SIGINT" not in seen:
        seen += os.read(ours, 1024)
    # Signals that are passed on keep their order: a second SIGINT would be seen before this.
    process.send_signal(signal.SIGUSR1)
    while b"SIGUSR1" not in seen:
        seen += os.read(ours, 1024)
    assert seen.count(b"SIGINT") == 1
    process.kill()
    process.wait()
    os.close(ours)


def test_the_command_has_a_default_sigpipe(run: list[str], appliance: StandIn) -> None:
    """Python ignores it for itself; `head` depends on it."""
    script = "trap - PIPE; (yes; echo status $? >&2) | head -1"
    done = appliance.start([*run, "-p", "0.1", "--", "sh", "-c", script])
    assert "status 141" in done.stderr


def test_processes_are_spread_over_several_appliances(run: list[str], appliance: StandIn, second: StandIn) -> None:
    both = f"{appliance.endpoint},{second.endpoint}"
    with all_back(appliance), all_back(second):
        seen = environment_of(run, appliance, "--appliance", both, "-n", "2", "-p", "0.25")
        shares = json.loads(seen["REMOTEGPU_SHARES"])
        assert [share["endpoint"] for share in shares] == [appliance.endpoint, second.endpoint]
        seen = environment_of(run, appliance, "--appliance", both, "-n", "3", "-p", "0.25")
        assert len(json.loads(seen["REMOTEGPU_SHARES"])) == 2
        done = appliance.start([*run, "--appliance", both, "-n", "5", "-p", "0.25", "--", "true"])
        assert done.returncode == 75
        assert "0.25" in done.stderr and "5 GPUs" in done.stderr


def test_waiting_for_several_appliances_holds_nothing(run: list[str], appliance: StandIn, second: StandIn) -> None:
    both = f"{appliance.endpoint},{second.endpoint}"
    holder = second.lease(Ask(count=2, milli_per_gpu=900))
    with running(run, appliance, "--appliance", both, "-n", "4", "-p", "0.5", "--", "true") as process:
        assert process.stderr is not None
        assert "waiting" in process.stderr.readline()
        assert appliance.leased == 0
        holder.close()
        assert process.wait(10) == 0


def test_waiting_says_why_and_how_long_and_ends_with_the_share(run: list[str], appliance: StandIn) -> None:
    holder = appliance.lease(Ask(count=2, milli_per_gpu=900))
    with running(run, appliance, "-p", "0.5", "--", "echo", "done") as process:
        assert process.stderr is not None
        assert process.stdout is not None
        line = process.stderr.readline()
        names = ("remotegpu: waiting 0 s", "0.5 of a GPU", "0.10 (102.4 MiB)", "gpu 0")
        assert all(name in line for name in names), line
        holder.close()
        assert process.stdout.read() == "done\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_waiting_can_be_interrupted(run: list[str], appliance: StandIn, number: signal.Signals) -> None:
    holder = appliance.lease(Ask(count=2, milli_per_gpu=900))
    with running(run, appliance, "-p", "0.5", "--", "true") as process:
        assert process.stderr is not None
        process.stderr.readline()
        process.send_signal(number)
        assert process.wait(5) == -number
        assert process.stderr.read() == ""
    holder.close()
    until(lambda: appliance.leased == 0, 5, "nobody waits any more")


def test_no_wait_refuses_at_once(run: list[str], appliance: StandIn) -> None:
    holder = appliance.lease(Ask(count=2, milli_per_gpu=900))
    done = appliance.start([*run, "--no-wait", "-p", "0.5", "--", "true"])
    assert done.returncode == 75
    assert "0.5 of a GPU" in done.stderr
    assert done.stderr.count("\n") == 1
    holder.close()


def leases_of(appliance: StandIn) -> int | None:
    """Returns None while there is no gateway, which also passes calls on."""
    with contextlib.suppress(ApplianceError):
        return len(appliance.client.inventory().leases)
    return None


def test_the_holding_connection_survives_a_new_gateway(run: list[str], brief: StandIn) -> None:
    appliance = brief
    with running(run, appliance, "-p", "0.5", "--", "sleep", "60") as process:
        until(lambda: children_of(process.pid), 10, "the command runs")
        appliance.lease(Ask(milli_per_gpu=100))
        assert len(appliance.client.inventory().leases) == 2
        found = subprocess.run(
            ["pgrep", "-P", str(appliance.process.pid), "-f", "remotegpu-gateway"], capture_output=True, text=True
        )
        subprocess.run(["kill", "-KILL", found.stdout.strip()], check=True)
        until(lambda: leases_of(appliance) == 1, 10, "the one that is not held again has expired")
        assert appliance.leased == GIB // 2, "ours was held again before it expired"
        assert process.poll() is None


def test_the_end_of_a_lease_by_the_appliance_is_reported(run: list[str], dist: Path) -> None:
    with StandIn(dist) as appliance, running(run, appliance, "-p", "0.5", "--", "sleep", "60") as process:
        until(lambda: children_of(process.pid), 10, "the command runs")
        appliance.process.terminate()
        assert process.stderr is not None
        assert appliance.endpoint in process.stderr.readline()
        assert process.poll() is None, "what the command makes of it is its own affair"


def test_a_holder_that_waits_ends_with_its_input(appliance: StandIn) -> None:
    """Also while the share is not free: else a request of a program that was killed would stay in the queue."""
    holder = appliance.lease(Ask(count=2, milli_per_gpu=900))
    command = [REMOTEGPU_RUN, "--hold", "-a", appliance.endpoint, "-p", "0.5"]
    process = subprocess.Popen(
        command, env=appliance.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stderr is not None
    assert b"waiting" in process.stderr.readline()
    output, _ = process.communicate(timeout=5)
    assert (process.returncode, output) == (-signal.SIGTERM, b"")
    holder.close()
    until(lambda: appliance.leased == 0, 5, "nobody waits any more")


def test_what_is_no_utf_8_passes_through(run: list[str], appliance: StandIn, dist: Path) -> None:
    script = "import os; print(os.environb[b'PYTHONPATH'].hex())"
    command = [*run, "-a", appliance.endpoint, "-p", "0.1", "--", sys.executable, "-c", script]
    own = {os.fsencode(name): os.fsencode(value) for name, value in appliance.environment.items()}
    own[b"PYTHONPATH"] = b"/home/jos\xe9/lib"
    done = subprocess.run(command, env=own, capture_output=True, text=True, timeout=20)
    assert bytes.fromhex(done.stdout) == b"/home/jos\xe9/lib:" + bytes(dist / "frameworks"), done.stderr
