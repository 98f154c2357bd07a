"""The command `remotegpu appliance`: reads the options into settings, and runs the appliance."""

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from remotegpu import extensions
from remotegpu.api import addresses, names
from remotegpu.api.durations import parse_duration
from remotegpu.api.modes import ComputeMode, Landlock, Profile, WorkerWrites, default_sessions_per_gpu
from remotegpu.cli import exits
from remotegpu.cli.options import bytes_of
from remotegpu.cli.run.null_rules import code_with_rules, tallied

if TYPE_CHECKING:
    from remotegpu.appliance.machine.images import ImageRoom
    from remotegpu.appliance.settings import EnvironmentOption

BackendOfAppliance = Annotated[Literal["cuda", "software"], typer.Option(help="Real GPUs, or CPU.")]

appliances = typer.Typer(invoke_without_command=True)


@appliances.callback()
def appliance(
    context: typer.Context,
    backend: BackendOfAppliance = "software",
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Control port; data is one higher.")
    ] = names.DEFAULT_LISTEN,
    data_port: Annotated[int | None, typer.Option(min=0, max=65535, help="Another data port; 0: any free one.")] = None,
    gpus: Annotated[int, typer.Option(min=1, max=64, envvar=names.SOFTGPU_DEVICES_ENV, help="Software GPUs.")] = 1,
    memory: Annotated[
        str,
        typer.Option(
            envvar=names.SOFTGPU_MEMORY_ENV, help="Memory of each software GPU. Default: 8GiB; of a null GPU 80GiB."
        ),
    ] = "",
    profile: Annotated[
        Profile,
        typer.Option(
            envvar=names.SOFTGPU_PROFILE_ENV,
            help="hostile: a software GPU that behaves as badly as a real driver may. slow: one whose queues are full. "
            "null-h100: an H100 that takes everything and computes nothing.",
        ),
    ] = Profile.NORMAL,
    threads: Annotated[
        int | None, typer.Option(min=1, max=1024, envvar=names.SOFTGPU_THREADS_ENV, help="CPU threads per session.")
    ] = None,
    driver: Annotated[Path | None, typer.Option(exists=True, dir_okay=False, help="Path of libcuda.so.1.")] = None,
    cert: Annotated[Path | None, typer.Option(help="TLS certificate (PEM).")] = None,
    key: Annotated[Path | None, typer.Option(help="Its key (PEM).")] = None,
    local_sockets: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="With --cert: programs of this machine that see this folder at the same path share their page-locked "
            "memory by a socket there, so that its bytes need no network.",
        ),
    ] = None,
    tokens: Annotated[
        Path | None,
        typer.Option(help="File with name:token lines below [admin] and [user]; read again when it changes."),
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Let other machines in without --tokens or without TLS.")
    ] = False,
    anybody: Annotated[
        bool,
        typer.Option("--anybody", help="Ask for no token: whoever reaches it may do everything."),
    ] = False,
    metrics_port: Annotated[int, typer.Option(min=0, max=65535, help="Prometheus on 127.0.0.1; 0: none.")] = 0,
    http: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Plain HTTP: /healthz, /readyz, /metrics.", show_default=False)
    ] = "",
    dashboard: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT", help="A page that shows GPUs and leases, for who has a token.", show_default=False
        ),
    ] = "",
    kubernetes: Annotated[bool, typer.Option("--kubernetes", help="Serve the GPUClaims of the cluster.")] = False,
    name: Annotated[str, typer.Option(help="With --kubernetes: how allocations name this appliance.")] = "",
    pool: Annotated[str, typer.Option(help="With --kubernetes: its GPUPool, whose pods' tokens it takes.")] = "",
    operator_account: Annotated[
        str,
        typer.Option(metavar="NAMESPACE:NAME", help="With --kubernetes: the service account that sees everything."),
    ] = names.OPERATOR_ACCOUNT,
    believe_seconds: Annotated[
        float,
        typer.Option(min=0, help="With --kubernetes: how long an identity is believed without the API server."),
    ] = 3600.0,
    drain_seconds: Annotated[float, typer.Option(min=0, help="On SIGTERM, how long leases may go on.")] = 20.0,
    grace: Annotated[
        str, typer.Option(metavar="DURATION", help="How long sessions and leases live without a connection; 0s: not.")
    ] = "60s",
    max_leases: Annotated[int, typer.Option(min=1, help="Leases and waiting requests at a time.")] = 256,
    sessions_per_lease: Annotated[int, typer.Option(min=1, help="Processes of one lease at a time.")] = 64,
    sessions_per_gpu: Annotated[
        int | None, typer.Option(min=1, help="Processes on one GPU at a time; memory for their contexts is set aside.")
    ] = None,
    sessions_per_tenant: Annotated[
        int | None,
        typer.Option(min=1, help="Processes of one namespace or token. Default: as many as its leases may have."),
    ] = None,
    session_budget: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=NUMBER", help="Most streams, events, ... of one process; repeatable."),
    ] = None,
    host_memory_per_lease: Annotated[
        str,
        typer.Option(help="Memory of this machine for the processes of one lease. Default: half.", show_default=False),
    ] = "",
    host_memory_per_tenant: Annotated[
        str,
        typer.Option(
            help="The same for all processes of one namespace or token. Default: three quarters.", show_default=False
        ),
    ] = "",
    image_memory: Annotated[
        str, typer.Option(help="Device code that is kept for each process, in memory of this machine.")
    ] = "1GiB",
    warm_contexts: Annotated[
        bool,
        typer.Option(
            help="Keep a worker with a context for each GPU, so that programs start sooner; it takes what a context "
            "takes of the GPU.",
        ),
    ] = False,
    code_cache: Annotated[
        str,
        typer.Option(
            help="Memory for device code that later processes of a tenant need not send; 0: none is kept. "
            "Default: a 32nd of the machine's, 1GiB at most.",
            show_default=False,
        ),
    ] = "",
    public_code: Annotated[
        str,
        typer.Option(
            metavar="TENANT",
            help="Sessions of all tenants may have the device code that this one has sent (the name of a token, or a "
            "namespace): run there what is no secret, such as torch. Default: each tenant has its own alone.",
            show_default=False,
        ),
    ] = "",
    managed_memory: Annotated[
        str,
        typer.Option(help="Managed memory of a program that sets nothing itself. Default: 256MiB.", show_default=False),
    ] = "",
    suspend_memory: Annotated[
        str,
        typer.Option(help="Memory of this machine for suspended leases. Default: a quarter of it.", show_default=False),
    ] = "",
    suspend_disk: Annotated[
        str, typer.Option(metavar="FOLDER=SIZE", help="Where suspended leases go for which memory has no room.")
    ] = "",
    move_bandwidth: Annotated[
        str,
        typer.Option(help="Most that a lease sends in a second when it moves to another appliance. Default: no limit."),
    ] = "",
    move_to: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HOST:PORT",
            help="An appliance to which users may have their leases move; any: all. Again for more. Default: only "
            "administrators move leases.",
        ),
    ] = None,
    offload: Annotated[
        list[str] | None,
        typer.Option(metavar="[NAME=]PYTHON[:BACKEND]", help="An interpreter for offload sessions; repeatable."),
    ] = None,
    readable: Annotated[
        list[Path] | None,
        typer.Option(
            exists=True,
            metavar="PATH",
            help="With --offload: what sessions may read beside their interpreter and the system's libraries, as data "
            "sets and model caches. Again for more.",
        ),
    ] = None,
    offload_memory: Annotated[
        str, typer.Option(help="Memory of the machine for each offload session. Default: half of it.")
    ] = "",
    uid_base: Annotated[
        int | None,
        typer.Option(min=0, help="As root: first of the workers' user ids; 0: they keep ours. Default: free ones."),
    ] = None,
    compute_mode: Annotated[
        ComputeMode,
        typer.Option(case_sensitive=False, help="Turns: divide the time of each GPU among leases, by their shares."),
    ] = ComputeMode.SHARED,
    landlock: Annotated[
        Landlock,
        typer.Option(case_sensitive=False, help="Warn: start on a kernel that has no Landlock to keep sessions apart."),
    ] = Landlock.REQUIRE,
    worker_writes: Annotated[
        WorkerWrites,
        typer.Option(
            case_sensitive=False,
            help="Devices: of all files, workers change device nodes alone. Try it with your driver first.",
        ),
    ] = WorkerWrites.ANYWHERE,
    require_cgroup: Annotated[
        bool,
        typer.Option("--require-cgroup", help="Refuse to start where the kernel limits no session's memory."),
    ] = False,
    self_test: Annotated[bool, typer.Option("--self-test/--no-self-test", help="Prove every GPU at the start.")] = True,
    quiet: Annotated[bool, typer.Option(help="Log only errors.")] = False,
    ready_fd: Annotated[int | None, typer.Option(hidden=True)] = None,
    parent_fd: Annotated[int | None, typer.Option(hidden=True)] = None,
) -> None:
    """Share the GPUs of this machine."""
    if context.invoked_subcommand is not None:
        return
    from remotegpu.appliance.checks import exposed_without  # noqa: PLC0415
    from remotegpu.appliance.server import StartError, run  # noqa: PLC0415
    from remotegpu.appliance.sessions.budgets import unknown_budget  # noqa: PLC0415
    from remotegpu.appliance.settings import Kubernetes, Limits, Settings  # noqa: PLC0415

    host, port = _address("--listen", listen, names.DEFAULT_LISTEN)
    if kubernetes != bool(name):
        raise exits.CliError(exits.USAGE, "--kubernetes and --name belong together: give both, or none")
    if readable and not offload:
        raise exits.CliError(exits.USAGE, "--readable is for sessions of offload: give it with --offload")
    if anybody and (tokens or kubernetes):
        other = "--tokens" if tokens else "--kubernetes"
        raise exits.CliError(exits.USAGE, f"--anybody asks for no token, and {other} for one: give one of them")
    if http and metrics_port:
        raise exits.CliError(exits.USAGE, "--http serves the metrics too: leave out --metrics-port")
    if dashboard and kubernetes:
        raise exits.CliError(exits.USAGE, "in a cluster the operator serves the page: the chart's dashboard.enabled")
    if wrong := next(filter(None, map(unknown_budget, session_budget or ())), ""):
        raise exits.CliError(exits.USAGE, wrong)
    memory_bytes = bytes_of("--memory", memory) if memory else profile.memory_bytes
    image_bytes = bytes_of("--image-memory", image_memory)
    environments, offload_memory_bytes = _offload(offload or [], offload_memory)
    settings = Settings(
        host=host,
        port=port,
        data_port=data_port,
        http=_http_address(http, metrics_port),
        dashboard=_address("--dashboard", dashboard, "127.0.0.1:7073") if dashboard else None,
        backend=backend,
        gpus=gpus,
        memory_bytes=memory_bytes,
        profile=profile,
        threads=threads,
        driver=driver and driver.resolve(),
        cert=cert,
        key=key,
        local_sockets=local_sockets,
        tokens=tokens,
        anybody=anybody,
        kubernetes=Kubernetes(name, operator_account, pool, believe_seconds) if kubernetes else None,
        drain_seconds=drain_seconds,
        grace_seconds=_duration("--grace", grace),
        images=_image_room(suspend_memory, suspend_disk),
        warm_contexts=warm_contexts,
        code_cache_bytes=_code_cache_bytes(code_cache),
        public_code=public_code or None,
        move_bytes_per_second=bytes_of("--move-bandwidth", move_bandwidth) if move_bandwidth else None,
        move_to=_move_to(move_to or [], tokens),
        uid_base=uid_base,
        landlock=landlock,
        worker_writes=worker_writes,
        compute_mode=compute_mode,
        require_cgroup=require_cgroup,
        self_test=self_test,
        limits=Limits(
            max_leases,
            sessions_per_lease,
            sessions_per_gpu or default_sessions_per_gpu(backend),
            sessions_per_tenant,
            image_bytes,
            tuple(session_budget or ()),
            bytes_of("--host-memory-per-lease", host_memory_per_lease) if host_memory_per_lease else None,
            bytes_of("--host-memory-per-tenant", host_memory_per_tenant) if host_memory_per_tenant else None,
            bytes_of("--managed-memory", managed_memory) >> 20 if managed_memory else None,
        ),
        offload=environments,
        readable=tuple(readable or ()),
        offload_memory_bytes=offload_memory_bytes,
        quiet=quiet,
        ready_fd=ready_fd,
        parent_fd=parent_fd,
    )
    reached, lacks = listen, exposed_without(settings)
    if settings.dashboard and not lacks:
        reached, lacks = dashboard, exposed_without(replace(settings, host=settings.dashboard[0]))
    if lacks and not insecure:
        raise exits.CliError(
            exits.USAGE,
            f"other machines reach {reached}: give {' and '.join(lacks)} (`remotegpu appliance init FOLDER` makes the "
            "files), or --insecure to do without: then this user's own token opens it, and with --anybody no token",
        )
    with tallied(os.environ, profile) as tally:
        os.environ.update(tally.environment() if tally else {})
        try:
            run(settings)
        except StartError as error:
            raise exits.CliError(exits.UNAVAILABLE, str(error)) from None
        if code := code_with_rules(0, tally):
            raise typer.Exit(code)


def _move_to(named: list[str], tokens: Path | None) -> tuple[str, ...]:
    from remotegpu.appliance.moving.destinations import Destinations  # noqa: PLC0415

    if named and tokens is None:
        raise exits.CliError(exits.USAGE, "--move-to is for users, and they have tokens: give it with --tokens")
    try:
        Destinations(named)
    except ValueError as error:
        raise exits.CliError(exits.USAGE, f"--move-to: {error}") from None
    return tuple(named)


def _image_room(memory: str, disk: str) -> "ImageRoom":
    from remotegpu.appliance.machine.images import ImageRoom  # noqa: PLC0415
    from remotegpu.appliance.settings import physical_bytes  # noqa: PLC0415

    memory_bytes = bytes_of("--suspend-memory", memory) if memory else physical_bytes() // 4
    if not disk:
        return ImageRoom(memory_bytes)
    folder, equals, size = disk.rpartition("=")
    if not equals or not Path(folder).is_dir():
        raise exits.CliError(exits.USAGE, f"--suspend-disk: {disk!r}: write FOLDER=SIZE, with a folder that is there")
    return ImageRoom(memory_bytes, Path(folder), bytes_of("--suspend-disk", size))


def _code_cache_bytes(text: str) -> int:
    from remotegpu.appliance.settings import default_code_cache_bytes  # noqa: PLC0415

    if text == "0":
        return 0
    return bytes_of("--code-cache", text) if text else default_code_cache_bytes()


@appliances.command("init")
def init_appliance(
    folder: Annotated[Path, typer.Argument(help="Where to put them; made if it is not there.")],
    host: Annotated[
        list[str] | None,
        typer.Option("--host", help="Name or address of this machine for others; repeatable. Default: its host name."),
    ] = None,
    backend: BackendOfAppliance = "software",
) -> None:
    """Make certificates, tokens and a unit of systemd for an appliance that other machines reach."""
    from remotegpu.cli.appliance.init import init  # noqa: PLC0415

    typer.echo(init(folder, host or [], backend))


def _http_address(http: str, metrics_port: int) -> tuple[str, int] | None:
    if http:
        return _address("--http", http, "[::]:7072")
    return ("127.0.0.1", metrics_port) if metrics_port else None


def _offload(texts: list[str], memory: str) -> "tuple[tuple[EnvironmentOption, ...], int | None]":
    try:
        options = extensions.required_offload().options(texts) if texts else ()
    except ValueError as error:
        raise exits.CliError(exits.USAGE, f"--offload {error}") from None
    return options, bytes_of("--offload-memory", memory) if memory else None


def _duration(option: str, text: str) -> int:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise exits.CliError(exits.USAGE, f"{option}: {error}") from None


def _address(option: str, text: str, example: str) -> tuple[str, int]:
    try:
        host, port = addresses.split(text)
    except ValueError as error:
        raise exits.CliError(exits.USAGE, f"{option} {error}; write HOST:PORT, as {example} or [::]:7070") from None
    return addresses.to_listen_on(host), port
