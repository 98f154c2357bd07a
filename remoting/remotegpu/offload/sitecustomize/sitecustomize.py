"""Where `remotegpu_offload/sitecustomize` was: for one release a PYTHONPATH that names this folder still arms."""

import importlib.machinery
import importlib.util
import os
import sys
import warnings

_HERE = os.path.dirname(os.path.abspath(__file__))
_BESIDE = os.path.dirname(os.path.dirname(os.path.dirname(_HERE)))
_IN_A_CLONE = os.path.join(os.path.dirname(_BESIDE), "offload")


def _new_place() -> str:
    found = importlib.util.find_spec("remotegpu_offload")
    if found is not None:
        return os.path.join(os.path.dirname(found.origin or ""), "sitecustomize")
    # Beside us; in a clone in a folder of its own.
    places = [os.path.join(folder, "remotegpu_offload", "sitecustomize") for folder in (_BESIDE, _IN_A_CLONE)]
    return next(filter(os.path.isdir, places), places[0])


# In place of ours, so that a search for the next `sitecustomize` on the path does not find this one.
sys.path[:] = [_new_place() if os.path.abspath(path or ".") == _HERE else path for path in sys.path]
_spec = importlib.machinery.PathFinder.find_spec("sitecustomize", [_new_place()])
if _spec is None or _spec.loader is None:
    sys.stderr.write("remotegpu: offload is not armed: remotegpu_offload is missing; install remotegpu anew\n")
else:
    sys.modules["sitecustomize"] = _module = importlib.util.module_from_spec(_spec)
    _spec.loader.exec_module(_module)
    warnings.warn(f"{_HERE} moves: put {_new_place()} into PYTHONPATH instead", DeprecationWarning, stacklevel=1)
