"""Estimators of scikit-learn. Their parameters stay here, so that cloning and searching need no round trips.

This relies on scikit-learn's rule that a constructor only stores its arguments, under their names. Therefore the object
in the acceptor is created at the first call of a method, with the current parameters.
"""

import copy
from typing import Any, Final

from remotegpu_offload.functions import classes
from remotegpu_offload.objects.codec import CALLER, HANDLE

# Modules whose methods handle only parameters, tags and representation.
_ABOUT_PARAMETERS: Final = ("sklearn.base", "sklearn.utils._metadata_requests", "sklearn.utils._repr_html")
_HERE: Final = frozenset(("__init__", "__repr__", "get_params", "get_metadata_routing", "set_output"))
# Attributes that scikit-learn stores besides the parameters, and reads in every estimator that it clones.
_SETTINGS: Final = ("_metadata_request", "_sklearn_", "_skl_")
_OUTPUT: Final = "_sklearn_output_config"


def is_estimator(kind: type) -> bool:
    """Returns whether a class derives from BaseEstimator, and so follows scikit-learn's rules."""
    return any(base.__module__ == "sklearn.base" and base.__name__ == "BaseEstimator" for base in kind.__mro__)


class EstimatorShell(classes.Shell):
    """A shell that holds the parameters; the object in the acceptor holds the fitted attributes."""

    __slots__ = ()

    @classmethod
    def _remotegpu_stays(cls, original: type, name: str) -> bool:
        if super()._remotegpu_stays(original, name) or name in _HERE or name.startswith(("__sklearn", "_repr_")):
            return True
        home = next((base for base in original.__mro__ if name in vars(base)), object)
        about = home.__module__.startswith(_ABOUT_PARAMETERS)
        return about and not (home.__name__.endswith("Mixin") and not name.startswith("_"))

    def _remotegpu_begin(self) -> None:
        classes.fill(self, self._parameters(), "with_attributes")

    def _parameters(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in (CALLER, HANDLE)}

    def __getattr__(self, name: str) -> Any:
        if HANDLE not in vars(self) or name.startswith(_SETTINGS):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return super().__getattr__(name)

    def __setattr__(self, name: str, value: Any) -> None:
        made = HANDLE in vars(self)
        if not made or name in vars(self) or name in (CALLER, HANDLE) or name.startswith(_SETTINGS):
            object.__setattr__(self, name, value)
        if made:
            super().__setattr__(name, value)

    def set_params(self, **parameters: Any) -> Any:
        """Sets parameters, like scikit-learn's method.

        Changed parameters of nested estimators are sent to the acceptor too.
        """
        super().set_params(**parameters)  # type: ignore[misc]
        if HANDLE in vars(self):
            for name in {each.partition("__")[0] for each in parameters}:
                super().__setattr__(name, vars(self)[name])
        return self

    def set_output(self, **settings: Any) -> Any:
        """Sets the output format, like scikit-learn's method, here and in the acceptor."""
        super().set_output(**settings)  # type: ignore[misc]
        if HANDLE in vars(self) and _OUTPUT in vars(self):
            super().__setattr__(_OUTPUT, vars(self)[_OUTPUT])
        return self

    def __sklearn_is_fitted__(self) -> bool:
        return HANDLE in vars(self) and classes.call(
            self, {"op": "call", "t": ["remotegpu_offload.functions.acceptor", "is_fitted"]}, (self,)
        )

    def __copy__(self) -> Any:
        return self._with(super().__copy__() if HANDLE in vars(self) else classes.shell(type(self)), self._parameters())

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        made = super().__deepcopy__(memo) if HANDLE in vars(self) else classes.shell(type(self))
        memo[id(self)] = made
        return self._with(made, copy.deepcopy(self._parameters(), memo))

    def _with(self, made: Any, parameters: dict[str, Any]) -> Any:
        vars(made).update(parameters)
        return made

    def __setstate__(self, state: Any) -> None:
        super().__setstate__(state)
        names = self._get_param_names()
        vars(self).update({name: state[name] for name in names if name in state})
