"""`python -m cluster up | down | status | programs | images | restart PART`, from e2e/."""

from __future__ import annotations

import argparse
import subprocess
import sys

from cluster import builds, images, lifecycle, programs
from cluster.progress import step


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m cluster", description="A Kubernetes cluster of this machine's own."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("up", help="bring it up, and what has ended of it up again")
    commands.add_parser("down", help="take it down; programs and images that were built stay")
    commands.add_parser("status", help="the processes of its parts")
    commands.add_parser("programs", help="install and build the programs that it needs, without starting any")
    commands.add_parser("images", help="build the project's images and load them into the nodes where they are up")
    restart = commands.add_parser("restart", help="end one part and start it again")
    restart.add_argument("part", help="a name that `status` shows")
    arguments = parser.parse_args()
    try:
        match arguments.command:
            case "up":
                lifecycle.up()
                print(f"The cluster is up: export KUBECONFIG={lifecycle.KUBECONFIG}")
            case "down":
                lifecycle.down()
            case "programs":
                programs.install()
            case "images":
                built = builds.all_images()
                with step("bills of materials"):
                    builds.write_bills(built)
                if lifecycle.is_up():
                    with step("images into the nodes"):
                        images.load(lifecycle.NODES, *built)
            case "restart":
                part = lifecycle.part(arguments.part)
                part.stop()
                part.start()
            case "status":
                processes = lifecycle.status()
                for name, pid in processes.items():
                    print(f"{name:24} {pid or 'does not run'}")
                return 0 if all(processes.values()) else 1
    except (RuntimeError, subprocess.CalledProcessError) as error:
        print(f"cluster: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
