"""Python imports this module at its start if PYTHONPATH contains this folder: in pods, and in processes that a program
of `offload run` or a program in an acceptor starts.

It installs an import hook and imports no other module of this project. Then it runs the user's own `sitecustomize`.
"""

import importlib.machinery
import importlib.util
import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))
_PACKAGE = os.path.dirname(_HERE)


def _our_packages() -> None:
    """Imports this project's packages by their paths, which keeps other packages in their folder invisible to the
    program."""
    beside = os.path.dirname(_PACKAGE)
    if not os.path.isdir(base := os.path.join(beside, "remotegpu")):
        # In a clone, each package has its own parent folder.
        base = os.path.join(os.path.dirname(beside), "remoting", "remotegpu")
    for name, folder in (("remotegpu", base), ("remotegpu_offload", _PACKAGE)):
        if name in sys.modules or importlib.util.find_spec(name) is not None:
            continue
        spec = importlib.util.spec_from_file_location(
            name, os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
        )
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)


def _arm() -> None:
    # A program may also start other versions of Python, where nothing must be armed.
    if sys.version_info < (3, 11):  # noqa: UP036 (other versions import this file too)
        return
    _our_packages()
    if "REMOTEGPU_OFFLOAD_RELAY" in os.environ:
        from remotegpu_offload.program import child

        child.attach()
        return
    from remotegpu_offload.importing import arm, libraries

    libraries.install_finder()
    arm.arm_from_environment()


def _users_own() -> None:
    paths = [path for path in sys.path if os.path.abspath(path or ".") != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", paths)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


try:
    _arm()
except Exception as error:  # the program must start after any error
    sys.stderr.write(f"remotegpu: offload is not armed: {type(error).__name__}: {error}\n")
_users_own()
