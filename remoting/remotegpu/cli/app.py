"""The commands and their options. The modules next to this one do the work."""

import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperGroup
from typer.exceptions import TyperException
from typer.main import get_group

from remotegpu import extensions
from remotegpu.api.failures import ApplianceError
from remotegpu.api.modes import Profile
from remotegpu.cli import completion, exits
from remotegpu.cli.appliance.serve import appliances
from remotegpu.cli.options import (
    ApplianceOption,
    CaOption,
    ClaimsOfOption,
    ClusterOption,
    ContextOption,
    CountOption,
    FractionOption,
    JsonOption,
    KubeconfigOption,
    MemoryOption,
    NamespaceOption,
    OnceOption,
    QuickOption,
    RunsOption,
    ServerNameOption,
    TokenFileOption,
    TokenOption,
    WaitOption,
    WatchOption,
    bytes_of,
    read_access,
    required,
    split,
)
from remotegpu.paths import NotBuiltError

LeaseArgument = Annotated[str, typer.Argument(help="The lease, as `smi` shows it.", autocompletion=completion.leases)]


class _Commands(TyperGroup):
    """The commands of this package, and those of `offload`, which are imported only when they are used or listed."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        extension = extensions.offload() if cmd_name == extensions.OFFLOAD else None
        return super().get_command(ctx, cmd_name) if extension is None else get_group(extension.commands())


app = typer.Typer(
    name="remotegpu",
    cls=_Commands,
    help="Run unmodified CUDA programs on a share of a GPU in another machine.",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(appliances, name="appliance")


@app.command(
    context_settings={"allow_interspersed_args": False},
    epilog=f"Exit code: the command's own; before it runs {exits.USAGE} usage, {exits.UNAVAILABLE} no appliance, "
    f"{exits.SOFTWARE} not built, {exits.BUSY} share not available, {exits.MISMATCH} versions do not fit, "
    f"{exits.DENIED} token, {exits.NOT_EXECUTABLE} not executable, {exits.NOT_FOUND} command not found.",
)
def run(
    command: Annotated[list[str], typer.Argument(metavar="COMMAND...", help="The command, best after `--`.")],
    appliance: ApplianceOption = "",
    count: CountOption = 1,
    fraction: FractionOption = None,
    memory: MemoryOption = None,
    compute: Annotated[
        str | None,
        typer.Option(
            metavar="PART",
            help="Of each GPU's time at least this, as 0.25, where appliances divide it. Default: as of its memory.",
        ),
    ] = None,
    compute_limit: Annotated[
        str | None, typer.Option(metavar="PART", help="Of each GPU's time at most this. Default: 1.")
    ] = None,
    native: Annotated[
        bool, typer.Option("--native", help="The software GPU in the program itself, no network.")
    ] = False,
    profile: Annotated[
        Profile | None,
        typer.Option(help="Without --appliance: what the GPU is like. null-h100: an H100 that computes nothing."),
    ] = None,
    managed_memory: Annotated[
        str,
        typer.Option(
            metavar="SIZE", help="Managed memory that the program may have; all of it travels. Default: 256MiB."
        ),
    ] = "",
    wait: WaitOption = True,
    report: Annotated[
        bool, typer.Option("--report", help="Say at the end what programs asked for that is not provided.")
    ] = False,
    report_file: Annotated[
        Path | None, typer.Option("--report-file", metavar="FILE", help="The same as JSON, into a file.")
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="When the program made its driver calls, for ui.perfetto.dev, and what to change."
        ),
    ] = None,
    token: TokenOption = "",
    token_file: TokenFileOption = None,
    ca: CaOption = None,
    server_name: ServerNameOption = "",
) -> None:
    """Run a command on a share of a GPU. Without --appliance: on a software GPU of this machine."""
    from remotegpu.cli.run.child import end_like  # noqa: PLC0415
    from remotegpu.cli.run.command import RunOptions, parse_ask, run, with_compute  # noqa: PLC0415

    options = RunOptions(
        command=command,
        ask=with_compute(parse_ask(count, fraction, memory), compute, compute_limit),
        appliances=split(appliance),
        access=read_access(token, token_file, ca, server_name),
        native=native,
        profile=profile,
        managed_bytes=bytes_of("--managed-memory", managed_memory) if managed_memory else None,
        wait=wait,
        report=report,
        report_file=report_file,
        trace=trace,
    )
    raise typer.Exit(end_like(lambda: run(options)))


@app.command(
    context_settings={"allow_interspersed_args": False},
    epilog=f"Exit code: the command's own; {exits.DIVERGED} where a replayed program does otherwise than the recording "
    "says, or two recordings differ.",
)
def trace(
    command: Annotated[
        list[str] | None, typer.Argument(metavar="[COMMAND...]", help="The command, best after `--`.")
    ] = None,
    record: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the command's driver calls.")] = None,
    contents: Annotated[
        bool, typer.Option("--contents", help="With --record: also the memory that copies gave the program.")
    ] = False,
    replay: Annotated[Path | None, typer.Option(metavar="FILE", help="Answer the command as recorded.")] = None,
    show: Annotated[Path | None, typer.Option(metavar="FILE", help="Print a recording.")] = None,
    compare: Annotated[
        tuple[Path, Path] | None, typer.Option(metavar="A B", help="Print where two recordings differ.")
    ] = None,
) -> None:
    """Record a program's driver calls, answer them as recorded, or compare two recordings."""
    from remotegpu.cli.run import trace as tracing  # noqa: PLC0415
    from remotegpu.cli.run.child import end_like  # noqa: PLC0415

    if sum(it is not None for it in (record, replay, show, compare)) != 1:
        raise exits.CliError(exits.USAGE, "give one of --record, --replay, --show and --compare")
    if bool(command) != (record is not None or replay is not None):
        raise exits.CliError(exits.USAGE, "--record and --replay need a command, --show and --compare take none")
    if contents and record is None:
        raise exits.CliError(exits.USAGE, "--contents belongs to --record")
    if command and record:
        raise typer.Exit(end_like(lambda: tracing.record(command, record, contents=contents)))
    if command and replay:
        raise typer.Exit(end_like(lambda: tracing.replay(command, replay)))
    if show:
        for line in tracing.show(tracing.read(show)):
            typer.echo(line)
    if compare:
        found = tracing.compare(tracing.read(compare[0]), tracing.read(compare[1]))
        for line in (found.first, *found.functions):
            typer.echo(line, nl=bool(line))
        raise typer.Exit(exits.DIVERGED if found.first or found.functions else 0)


@app.command()
def ls(
    appliance: ApplianceOption = "",
    as_json: JsonOption = False,
    watch: WatchOption = False,
    token: TokenOption = "",
    token_file: TokenFileOption = None,
    ca: CaOption = None,
    server_name: ServerNameOption = "",
) -> None:
    """List appliances, their GPUs and what is free."""
    from remotegpu.cli import show  # noqa: PLC0415

    show.ls(required(appliance), read_access(token, token_file, ca, server_name), as_json=as_json, watch=watch)


@app.command()
def smi(
    appliance: ApplianceOption = "",
    as_json: JsonOption = False,
    token: TokenOption = "",
    token_file: TokenFileOption = None,
    ca: CaOption = None,
    server_name: ServerNameOption = "",
) -> None:
    """Show GPUs with their leases, who holds them, and what they use."""
    from remotegpu.cli import show  # noqa: PLC0415

    show.smi(required(appliance), read_access(token, token_file, ca, server_name), as_json=as_json)


@app.command()
def suspend(
    lease: LeaseArgument,
    appliance: ApplianceOption = "",
    token: TokenOption = "",
    token_file: TokenFileOption = None,
    ca: CaOption = None,
    server_name: ServerNameOption = "",
) -> None:
    """Give a lease's share to others until it is resumed. Its programs wait at their next CUDA call."""
    from remotegpu.cli.appliance import suspension  # noqa: PLC0415

    suspension.suspend(required(appliance), read_access(token, token_file, ca, server_name), lease)


@app.command()
def resume(
    lease: LeaseArgument,
    appliance: ApplianceOption = "",
    token: TokenOption = "",
    token_file: TokenFileOption = None,
    ca: CaOption = None,
    server_name: ServerNameOption = "",
) -> None:
    """Give a suspended lease its share back, when that is free. Its programs continue."""
    from remotegpu.cli.appliance import suspension  # noqa: PLC0415

    suspension.resume(required(appliance), read_access(token, token_file, ca, server_name), lease)


@app.command()
def resize(
    lease: LeaseArgument,
    fraction: FractionOption = None,
    memory: Annotated[str | None, typer.Option("-m", "--memory", help="Memory of each GPU, as 4GiB.")] = None,
    appliance: ApplianceOption = "",
    token: TokenOption = "",
    token_file: TokenFileOption = None,
    ca: CaOption = None,
    server_name: ServerNameOption = "",
) -> None:
    """Give a lease more or less of its GPUs' memory, while its programs run."""
    from remotegpu.cli.appliance import suspension  # noqa: PLC0415
    from remotegpu.cli.run.command import parse_ask  # noqa: PLC0415

    if (fraction is None) == (memory is None):
        raise exits.CliError(exits.USAGE, "give the new size: -p FRACTION or -m MEMORY, as -m 8GiB")
    ask = parse_ask(1, fraction, memory)
    if ask.count > 1:
        raise exits.CliError(exits.USAGE, f"-p {fraction}: a lease keeps its GPUs; give a part of each, at most 1")
    suspension.resize(required(appliance), read_access(token, token_file, ca, server_name), lease, ask)


@app.command()
def migrate(
    lease: LeaseArgument,
    to: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="The appliance to move it to, as its programs reach it.")
    ],
    appliance: ApplianceOption = "",
    token: TokenOption = "",
    token_file: TokenFileOption = None,
    ca: CaOption = None,
    server_name: ServerNameOption = "",
) -> None:
    """Move a lease to another appliance with the same GPUs. Its programs continue there."""
    from remotegpu.cli.appliance import migration  # noqa: PLC0415

    migration.migrate(required(appliance), read_access(token, token_file, ca, server_name), lease, to)


@app.command()
def drain(
    deadline: Annotated[str, typer.Option(metavar="TIME", help="When leases that are left are ended, as 10m or 24h.")],
    appliance: ApplianceOption = "",
    token: TokenOption = "",
    token_file: TokenFileOption = None,
    ca: CaOption = None,
    server_name: ServerNameOption = "",
) -> None:
    """Let appliances open no more leases, and end when those that they have are gone; waits for it."""
    from remotegpu.cli.appliance import draining  # noqa: PLC0415

    draining.drain(required(appliance), read_access(token, token_file, ca, server_name), deadline)


@app.command()
def doctor(
    appliance: ApplianceOption = "",
    cluster: ClusterOption = False,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = "",
    bundle: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write what a bug report needs into a .tar.gz, without tokens and keys."),
    ] = None,
    as_json: JsonOption = False,
    token: TokenOption = "",
    token_file: TokenFileOption = None,
    ca: CaOption = None,
    server_name: ServerNameOption = "",
) -> None:
    """Check this installation, appliances and a cluster; the exit code is 0 only without a FAIL."""
    from remotegpu.cli.cluster.objects import Cluster  # noqa: PLC0415
    from remotegpu.cli.doctor.command import DoctorOptions, doctor  # noqa: PLC0415

    there = Cluster(kubeconfig, context) if cluster or kubeconfig or context else None
    access = read_access(token, token_file, ca, server_name)
    good = doctor(DoctorOptions(split(appliance), access, there, as_json, bundle))
    raise typer.Exit(0 if good else exits.UNAVAILABLE)


@app.command()
def why(
    pod: Annotated[
        str,
        typer.Argument(
            help="A pod that asks for a share, or with --claim a GPUClaim.", autocompletion=completion.pods_or_claims
        ),
    ],
    namespace: NamespaceOption = "",
    claim: Annotated[bool, typer.Option("--claim", help="It is the name of a GPUClaim.")] = False,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = "",
    as_json: JsonOption = False,
) -> None:
    """Say why a pod of a cluster waits for its share, when it probably starts, and what would start now."""
    from remotegpu.cli.cluster.objects import Cluster  # noqa: PLC0415
    from remotegpu.cli.cluster.why import why  # noqa: PLC0415

    why(Cluster(kubeconfig, context), namespace, pod, is_claim=claim, as_json=as_json)


@app.command()
def top(
    appliance: ApplianceOption = "",
    namespace: ClaimsOfOption = "",
    once: OnceOption = False,
    as_json: JsonOption = False,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = "",
    token: TokenOption = "",
    token_file: TokenFileOption = None,
    ca: CaOption = None,
    server_name: ServerNameOption = "",
) -> None:
    """Show live who has which part of which GPU: of appliances, or without --appliance of the cluster of kubectl."""
    from remotegpu.cli.top.appliances import Appliances  # noqa: PLC0415
    from remotegpu.cli.top.command import top  # noqa: PLC0415

    if kubeconfig or context or namespace or not split(appliance):
        top_of_cluster(namespace, kubeconfig, context, once=once, as_json=as_json)
    else:
        access = read_access(token, token_file, ca, server_name)
        top(Appliances(split(appliance), access), once=once, as_json=as_json)


def top_of_cluster(namespace: str, kubeconfig: Path | None, context: str, *, once: bool, as_json: bool) -> None:
    from remotegpu.cli.cluster.objects import Cluster  # noqa: PLC0415
    from remotegpu.cli.top.cluster import ClusterSource  # noqa: PLC0415
    from remotegpu.cli.top.command import top  # noqa: PLC0415

    top(ClusterSource(Cluster(kubeconfig, context), namespace), once=once, as_json=as_json)


@app.command()
def usage(
    since: Annotated[str, typer.Option(metavar="TIME", help="As 7d or 12h ago, or 2026-11-01, in UTC.")] = "7d",
    until: Annotated[str, typer.Option(metavar="TIME", help="Likewise. Default: now.")] = "",
    by: Annotated[
        str, typer.Option(help="A row for each namespace, user, pool, model or claim; or several, as namespace,model.")
    ] = "namespace",
    idle: Annotated[
        str, typer.Option(metavar="TIME", help="Instead: who has had a share for so long and no session, as 1h.")
    ] = "",
    output: Annotated[Literal["table", "csv", "json"], typer.Option("--output", "-o", help="How.")] = "table",
    system: Annotated[
        str, typer.Option(metavar="NAME", help="The namespace that remotegpu is installed in.")
    ] = "remotegpu-system",
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = "",
    as_json: JsonOption = False,
) -> None:
    """Say who of a cluster had which part of GPUs for how long, used it or not, and what that costs."""
    from remotegpu.cli.cluster import usage as work  # noqa: PLC0415
    from remotegpu.cli.cluster.objects import Cluster  # noqa: PLC0415

    cluster, form = Cluster(kubeconfig, context), "json" if as_json else output
    if idle:
        work.idle(cluster, system, idle, form)
    else:
        work.sums(cluster, system, since, until, by, form)


@app.command()
def bench(
    subject: Annotated[
        Literal["share", "softgpu", "turns", "bulk"],
        typer.Argument(help="A share, the software GPU alone, how the time of a GPU is divided, or large copies."),
    ] = "share",
    appliance: ApplianceOption = "",
    everything: Annotated[bool, typer.Option("--all", help="Also TLS, and 1 and 10 ms away.")] = False,
    quick: QuickOption = False,
    runs: RunsOption = None,
    reference: Annotated[
        str | None,
        typer.Option(
            metavar="IP:PORT", help="Beside --appliance: where `remotegpu-bench tcp-peer` runs on its machine."
        ),
    ] = None,
    saved: Annotated[
        Path | None, typer.Option("--from", metavar="FILE", help="Show what --json printed before; measure nothing.")
    ] = None,
    as_json: JsonOption = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown.")] = False,
    token: TokenOption = "",
    token_file: TokenFileOption = None,
    ca: CaOption = None,
    server_name: ServerNameOption = "",
) -> None:
    """Measure latency and bandwidth of a share against raw TCP; or how fast the software GPU computes."""
    if subject == "softgpu":
        from remotegpu.cli.bench import softgpu as bench_softgpu  # noqa: PLC0415

        bench_softgpu.bench(as_json=as_json)
        return
    if subject == "turns":
        from remotegpu.cli.bench import turns as bench_turns  # noqa: PLC0415

        bench_turns.bench(quick=quick, as_json=as_json)
        return
    if subject == "bulk":
        from remotegpu.cli.bench import bulk as bench_bulk  # noqa: PLC0415

        bench_bulk.bench(quick=quick, as_json=as_json)
        return
    from remotegpu.cli.bench.command import BenchOptions, bench, show_saved  # noqa: PLC0415

    form: Literal["table", "markdown", "json"] = "json" if as_json else "markdown" if as_markdown else "table"
    if saved is not None:
        show_saved(saved, form)
        return
    access = read_access(token, token_file, ca, server_name)
    bench(BenchOptions(split(appliance), access, reference, everything, quick, runs), form)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True}, add_help_option=False)
def offload() -> None:
    """Not in this installation: functions, classes and tensors of a Python program on an appliance's accelerator."""
    extensions.required_offload()


@app.command()
def version(as_json: JsonOption = False) -> None:
    """Print the version of this program and of its wire."""
    from remotegpu.cli import show  # noqa: PLC0415

    show.version(as_json=as_json)


def main() -> None:
    start(app, "remotegpu")


def start(commands: typer.Typer, program: str) -> None:
    """Runs commands as a program and exits. Prints an error as one line on stderr, with an exit code of `exits`."""
    try:
        result = commands(sys.argv[1:] or ["--help"], standalone_mode=False, prog_name=program)
    except exits.SaidError as error:
        sys.exit(error.code)
    except exits.CliError as error:
        _fail(error.code, str(error))
    except ApplianceError as error:
        _fail(exits.OF_FAILURE[error.failure], str(error))
    except (NotBuiltError, extensions.MissingError) as error:
        _fail(exits.SOFTWARE, str(error))
    except TyperException as error:
        # A group without a command has an empty message: it has printed its help.
        if message := error.format_message().rstrip("."):
            _fail(exits.USAGE, f"{message}; see `{program} --help`")
        sys.exit(exits.USAGE)
    except (typer.Abort, KeyboardInterrupt):
        sys.exit(130)
    except BrokenPipeError:
        sys.exit(141)
    sys.exit(result or 0)


def _fail(code: int, message: str) -> None:
    print(f"remotegpu: {' '.join(message.split())}", file=sys.stderr)  # noqa: T201
    sys.exit(code)
