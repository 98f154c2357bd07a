"""Python imports this at its start where this folder is in PYTHONPATH: in pods, below a program of `offload run`, and
below one in an acceptor.

It arms a hook and imports nothing else of ours. Afterwards the user's own `sitecustomize` runs as it would without us.
"""

import importlib.machinery
import importlib.util
import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))
_PACKAGE = os.path.dirname(os.path.dirname(_HERE))


def _our_package() -> None:
    """`remotegpu` by its path: what lies beside it is not for the user's program."""
    if "remotegpu" in sys.modules or importlib.util.find_spec("remotegpu") is not None:
        return
    spec = importlib.util.spec_from_file_location(
        "remotegpu", os.path.join(_PACKAGE, "__init__.py"), submodule_search_locations=[_PACKAGE]
    )
    assert spec is not None
    assert spec.loader is not None
    sys.modules["remotegpu"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)


def _arm() -> None:
    # A program may start another Python too, which has nothing to do with us.
    if sys.version_info < (3, 11):  # noqa: UP036 - other versions read it too
        return
    _our_package()
    if "REMOTEGPU_OFFLOAD_RELAY" in os.environ:
        from remotegpu.offload.program import child

        child.attach()
        return
    from remotegpu.offload.importing import arm, lending

    lending.lend()
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
except Exception as error:  # whatever it is, the program shall start
    sys.stderr.write(f"remotegpu: offload is not armed: {type(error).__name__}: {error}\n")
_users_own()
