"""The program `kubectl remotegpu`: a kubectl plugin for claims, pools and appliances of a cluster.

kubectl starts `kubectl-remotegpu` with the arguments after the plugin's name, and `kubectl_complete-remotegpu` for
their completion (https://kubernetes.io/docs/tasks/extend-kubectl/kubectl-plugins/).
"""

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer

from remotegpu.cli.app import start, top_of_cluster, usage, why
from remotegpu.cli.cluster.objects import Cluster, Target
from remotegpu.cli.options import (
    ClaimsOfOption,
    ContextOption,
    JsonOption,
    KubeconfigOption,
    NamespaceOption,
    OnceOption,
    WatchOption,
)

ApplianceArgument = Annotated[str, typer.Argument(help="As `kubectl remotegpu ls` names it.")]
PoolArgument = Annotated[str, typer.Argument(help="As `kubectl get gpupools` names it.")]
PodArgument = Annotated[str, typer.Argument(help="A pod that asks for a share, or with --claim a GPUClaim.")]
IsClaimOption = Annotated[bool, typer.Option("--claim", help="It is the name of a GPUClaim.")]
WaitOption = Annotated[bool, typer.Option("--wait/--no-wait", help="Until it is done, or is said not to be.")]
AllOption = Annotated[bool, typer.Option("--all-namespaces", "-A", help="Claims of all namespaces.")]

app = typer.Typer(
    name="kubectl remotegpu",
    help="Shares of GPUs in this cluster: who has them, who waits and why; suspend, resume and move them.",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.command()
def ls(
    namespace: NamespaceOption = "",
    all_namespaces: AllOption = False,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = "",
    as_json: JsonOption = False,
    watch: WatchOption = False,
) -> None:
    """Pools, appliances and claims."""
    from remotegpu.cli.cluster.claims import ls  # noqa: PLC0415

    cluster = Cluster(kubeconfig, context)
    ls(cluster, "" if all_namespaces else namespace or cluster.namespace, as_json=as_json, watch=watch)


@app.command()
def top(
    namespace: ClaimsOfOption = "",
    once: OnceOption = False,
    as_json: JsonOption = False,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = "",
) -> None:
    """Show live who has which part of which GPU, and who waits."""
    top_of_cluster(namespace, kubeconfig, context, once=once, as_json=as_json)


def _of_claim(work: Callable[..., None]) -> Callable[..., None]:
    """Decorates a command: adds the options that name a claim, and passes them to `work` as a Target."""
    named = inspect.signature(_target).parameters
    own = [each for each in inspect.signature(work).parameters.values() if each.annotation is not Target]
    options = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in (*named.values(), *own)]

    @functools.wraps(work)
    def command(**given: Any) -> None:
        work(_target(**{name: given.pop(name) for name in named}), **given)

    # Typer reads the options from these attributes.
    command.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in options}
    return command


def _target(
    pod: PodArgument,
    namespace: NamespaceOption = "",
    claim: IsClaimOption = False,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = "",
) -> Target:
    cluster = Cluster(kubeconfig, context)
    return Target(cluster, namespace or cluster.namespace, pod, claim)


@app.command()
@_of_claim
def describe(target: Target) -> None:
    """Show a claim's request, place, conditions and events."""
    from remotegpu.cli.cluster.claims import describe  # noqa: PLC0415

    describe(target)


for each in (why, usage):
    app.command()(each)


@app.command()
@_of_claim
def suspend(target: Target, wait: WaitOption = True) -> None:
    """Take the GPU from a claim, whose programs stand still and keep everything."""
    from remotegpu.cli.cluster.claims import suspend  # noqa: PLC0415

    suspend(target, wait=wait)


@app.command()
@_of_claim
def resume(target: Target, wait: WaitOption = True) -> None:
    """Give a suspended claim its GPU back, when there is room."""
    from remotegpu.cli.cluster.claims import resume  # noqa: PLC0415

    resume(target, wait=wait)


@app.command()
@_of_claim
def migrate(
    target: Target,
    to: Annotated[str, typer.Option("--to", metavar="APPLIANCE", help="As `kubectl remotegpu ls` names it.")],
    wait: WaitOption = True,
) -> None:
    """Move a claim to another appliance while its programs run."""
    from remotegpu.cli.cluster.claims import migrate  # noqa: PLC0415

    migrate(target, to, wait=wait)


@app.command()
def cordon(appliance: ApplianceArgument, kubeconfig: KubeconfigOption = None, context: ContextOption = "") -> None:
    """Give an appliance no new claims; what is there stays, and movable claims leave."""
    from remotegpu.cli.cluster.appliances import cordon  # noqa: PLC0415

    cordon(Cluster(kubeconfig, context), appliance, on=True)


@app.command()
def uncordon(appliance: ApplianceArgument, kubeconfig: KubeconfigOption = None, context: ContextOption = "") -> None:
    """Let an appliance have new claims again."""
    from remotegpu.cli.cluster.appliances import cordon  # noqa: PLC0415

    cordon(Cluster(kubeconfig, context), appliance, on=False)


@app.command()
def drain(appliance: ApplianceArgument, kubeconfig: KubeconfigOption = None, context: ContextOption = "") -> None:
    """Cordon an appliance, and wait until no claim is on it. Claims that are not movable stay until they end."""
    from remotegpu.cli.cluster.appliances import drain  # noqa: PLC0415

    drain(Cluster(kubeconfig, context), appliance)


@app.command()
def pack(
    pool: PoolArgument,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say which claims would move, and why others not.")
    ] = False,
    wait: WaitOption = True,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = "",
) -> None:
    """Move movable claims of a pool, while their programs run, so that fewer GPUs and appliances are in use."""
    from remotegpu.cli.cluster.packing import pack  # noqa: PLC0415

    pack(Cluster(kubeconfig, context), pool, dry_run=dry_run, wait=wait)


def main() -> None:
    start(app, "kubectl remotegpu")


def complete() -> None:
    """Prints one completion of the last argument on each line, then kubectl's directive against file names (":4")."""
    from remotegpu.cli.cluster.claims import names  # noqa: PLC0415

    *before, last = sys.argv[1:] or [""]
    commands = [command.name or command.callback.__name__ for command in app.registered_commands if command.callback]
    found = names(before) if before else commands
    print("\n".join([*(name for name in found if name.startswith(last)), ":4"]))  # noqa: T201
