"""The committed files equal those that the registry generates."""

from pathlib import Path

import pytest
from remotegpu_codegen.outputs import outputs

ROOT = Path(__file__).parents[2]
OUTPUTS = outputs(ROOT)


@pytest.mark.parametrize("name", OUTPUTS)
def test_generating_again_changes_nothing(name: str) -> None:
    committed = (ROOT / name).read_text()
    assert committed == OUTPUTS[name], "run `make generate` and commit the result"
