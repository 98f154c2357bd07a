"""Ctrl-C at any point of a training loop: the stream stays whole, and work continues."""

import os
import random
import signal
import threading
import time

import pytest
import torch
from IPython.core.interactiveshell import InteractiveShell
from torch import nn

from remotegpu_offload.torch import shown
from remotegpu_offload.torch.stream import interrupt
from remotegpu_offload.wire import interrupts

pytestmark = [pytest.mark.frameworks, pytest.mark.usefixtures("remote")]
_TIMES = 150


@pytest.mark.timeout(200)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_loop_that_is_interrupted_anywhere_goes_on() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)).to(shown.NAME)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    # The first that waits for the device takes care of Ctrl-C.
    torch.ones(1, device=shown.NAME).item()
    assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    chance = random.Random(1)
    interrupted = steps = 0
    try:
        for turn in range(_TIMES):
            # Once, at some point of the loop. In a destructor it is printed and goes no further.
            timer = threading.Timer(chance.uniform(0.001, 0.03), os.kill, (os.getpid(), signal.SIGINT))
            try:
                timer.start()
                while timer.is_alive():
                    samples = torch.arange(steps, steps + 32.0).reshape(4, 8)
                    optimizer.zero_grad()
                    loss = model(samples.to(shown.NAME)).square().mean()
                    loss.backward()
                    optimizer.step()
                    if steps % 3 == 0:
                        assert loss.item() >= 0
                    steps += 1
                # It may be raised a little later than it comes.
                time.sleep(0.1)
            except KeyboardInterrupt:
                interrupted += 1
            timer.join()
            # All that was sent is there, in order: what is computed next is right.
            count = torch.arange(turn + 10, device=shown.NAME)
            assert int(count.sum().item()) == (turn + 10) * (turn + 9) // 2
    finally:
        signal.signal(signal.SIGINT, before)
    assert steps > 0
    assert interrupted > _TIMES // 2


def test_a_notebooks_cells_are_interrupted_as_a_script_is() -> None:
    """A kernel puts Python's own handler back for each cell; torch could be in the way before the cell's first wait."""
    shell = InteractiveShell.instance()
    before = signal.getsignal(signal.SIGINT)
    try:
        interrupt.watch_cells()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        assert shell.run_cell("import signal; handler = signal.getsignal(signal.SIGINT)").success
        handler = shell.user_ns["handler"]
        assert callable(handler) and handler in interrupts.defaults
        assert handler is not signal.default_int_handler
        # A handler of the program's own stays.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        assert shell.run_cell("handler = signal.getsignal(signal.SIGINT)").success
        assert shell.user_ns["handler"] is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
        InteractiveShell.clear_instance()
