"""The committed files equal those that the registry generates."""

from pathlib import Path

import pytest
from remotegpu_codegen.outputs import outputs

REMOTING = Path(__file__).parents[2] / "remoting"
OUTPUTS = outputs(REMOTING)


@pytest.mark.parametrize("name", OUTPUTS)
def test_generating_again_changes_nothing(name: str) -> None:
    committed = (REMOTING / name).read_text()
    assert committed == OUTPUTS[name], "run `make generate` and commit the result"
