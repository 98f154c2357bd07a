"""A user's program with a package of their own: relative imports, data, dataclasses, enums, super()."""

import importlib.resources
import inspect
import json
import pickle
import pkgutil
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import settings
import shapes
from shapes import Circle, Kind, Square
from shapes.sub.deeper import describe


@dataclass
class Result:
    name: str
    area: float


def plugins():
    sys.path.insert(0, str(Path(__file__).parent / "extra"))
    import late

    return late.NAME


if __name__ == "__main__":
    results = [Result(shape.name, round(shape.area(), 3)) for shape in (Circle(2.0), Square(3.0))]
    print([asdict(result) for result in results], pickle.loads(pickle.dumps(results)) == results)
    print(Kind.ROUND, Kind("angular"), describe(Square(1.0)), Circle.__mro__[1].__name__)
    print(json.loads(importlib.resources.files("shapes").joinpath("data/units.json").read_text()))
    print(pkgutil.get_data("shapes", "data/units.json"))
    print((Path(shapes.__file__).parent / "data" / "units.json").read_text())
    with importlib.resources.as_file(importlib.resources.files(shapes) / "data" / "units.json") as path:
        print(path.stat().st_size)
    print(sorted(entry.name for entry in importlib.resources.files(shapes).iterdir() if not entry.name.startswith("_")))
    print([(module.name, module.ispkg) for module in pkgutil.iter_modules(shapes.__path__)])
    print(inspect.getsource(describe))
    print(settings.DEBUG, settings.__file__, Path(__file__).name, plugins())
    try:
        import numpy_that_is_nowhere  # noqa: F401
    except ImportError as error:
        print(type(error).__name__, error.name)
    print([name for name in sys.modules if name.startswith(("shapes", "settings"))])
