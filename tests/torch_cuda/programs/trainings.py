"""Trainings by torch with CUDA: losses and weights against the same training on torch's CPU back end.

Convolutions and LSTMs run torch's own kernels, since the bed has no cuDNN by default.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator

import cases
import numpy as np
import torch
import torchvision
from cases import Value
from torch import Tensor, nn
from torch.nn import functional

torch.backends.cudnn.enabled = False
torch.backends.cuda.matmul.allow_tf32 = False
WITHIN = 2e-5


def host(tensor: Tensor) -> np.ndarray:
    return tensor.detach().float().cpu().numpy()


class Training:
    """A model with its optimiser on a device, from equal seeds."""

    def __init__(self, device: str, model: Callable[[], nn.Module], batch: Callable[[], tuple[Tensor, Tensor]]) -> None:
        torch.manual_seed(7)
        self.model = model().to(device)
        self.device, self.batch = device, batch
        self.optimiser: torch.optim.Optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)

    def loss(self, given: Tensor, wanted: Tensor) -> Tensor:
        return functional.cross_entropy(self.model(given).flatten(0, -2), wanted.flatten())

    def step(self) -> Tensor:
        given, wanted = (each.to(self.device) for each in self.batch())
        self.optimiser.zero_grad()
        loss = self.loss(given, wanted)
        loss.backward()
        self.optimiser.step()
        return loss.detach()

    def losses(self, steps: int) -> np.ndarray:
        torch.manual_seed(11)
        return np.array([float(self.step()) for _ in range(steps)], np.float32)

    def weights(self) -> dict[str, np.ndarray]:
        return {name: host(each) for name, each in self.model.state_dict().items()}


def alike(got: Training, want: Training, steps: int, within: float = WITHIN) -> Iterator[Value]:
    yield Value(got.losses(steps), want.losses(steps), within)
    wanted = want.weights()
    for name, each in got.weights().items():
        yield Value(each, wanted[name], within)


def digits() -> tuple[Tensor, Tensor]:
    return torch.randn(32, 64), torch.randint(10, (32,))


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.LayerNorm(128), nn.Linear(128, 10))


def mlp() -> Iterator[Value]:
    yield from alike(*(Training(device, perceptron, digits) for device in ("cuda", "cpu")), 20)


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        split = self.attention(self.before(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(*split, is_causal=True)
        x = x + self.projection(seen.transpose(1, 2).flatten(2))
        return x + self.feed(self.between(x))


class Transformer(nn.Module):
    """GPT-2's form."""

    def __init__(
        self, vocabulary: int = 97, width: int = 64, heads: int = 4, layers: int = 2, length: int = 64
    ) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.last = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.words.weight
        nn.init.normal_(self.words.weight, std=0.02)

    def forward(self, words: Tensor) -> Tensor:
        places = torch.arange(words.shape[1], device=words.device)
        return self.head(self.last(self.blocks(self.words(words) + self.places(places))))


def sentences() -> tuple[Tensor, Tensor]:
    words = torch.randint(97, (4, 49))
    return words[:, :-1], words[:, 1:]


def gpt2() -> Iterator[Value]:
    """Fused AdamW on the GPU; then greedy generation."""
    got, want = (Training(device, Transformer, sentences) for device in ("cuda", "cpu"))
    for each, fused in ((got, True), (want, False)):
        each.optimiser = torch.optim.AdamW(each.model.parameters(), lr=1e-3, fused=fused)
    # Adam divides by the root of its second moment, so that what is tiny counts as well.
    yield from alike(got, want, 6, 2e-4)
    texts = []
    for each in (got, want):
        words = torch.arange(8).unsqueeze(0).to(each.device)
        with torch.no_grad():
            for _ in range(16):
                words = torch.cat([words, each.model(words)[:, -1:].argmax(-1)], 1)
        texts.append(words.cpu().numpy())
    yield Value(*texts)


def pictures() -> tuple[Tensor, Tensor]:
    """So large that the last normalisation is over more than the pictures: of two values it would be a sign."""
    return torch.randn(3, 3, 64, 64), torch.randint(10, (3,))


def smooth_resnet() -> nn.Module:
    """ResNet-18 with SiLU: where ReLU turns over on the last bit, what follows is far off in double as well."""
    model = torchvision.models.resnet18(num_classes=10)
    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, nn.ReLU):
                setattr(module, name, nn.SiLU())
    return model


def resnet18() -> Iterator[Value]:
    got, want = (Training(device, smooth_resnet, pictures) for device in ("cuda", "cpu"))
    for each in (got, want):
        each.optimiser = torch.optim.SGD(each.model.parameters(), lr=0.01)
    yield from alike(got, want, 2, 1e-3)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.LSTM(24, 48, num_layers=2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(96, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(x)[0][:, -1])


def series() -> tuple[Tensor, Tensor]:
    return torch.randn(8, 20, 24), torch.randint(10, (8,))


def lstm() -> Iterator[Value]:
    yield from alike(*(Training(device, Recurrent, series) for device in ("cuda", "cpu")), 4)


class Mixed(Training):
    scaler: torch.amp.GradScaler | None = None

    def step(self) -> Tensor:
        given, wanted = (each.to(self.device) for each in self.batch())
        self.optimiser.zero_grad()
        with torch.autocast("cuda", torch.float16, enabled=self.device == "cuda"):
            loss = self.loss(given, wanted)
        self.scaler = self.scaler or torch.amp.GradScaler("cuda", enabled=self.device == "cuda")
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimiser)
        self.scaler.update()
        return loss.detach()


def mixed_precision() -> Iterator[Value]:
    """float16 against float32 on the CPU, so that half as many digits are compared."""
    yield from alike(*(Mixed(device, perceptron, digits) for device in ("cuda", "cpu")), 10, 2e-2)


def captured_graph() -> Iterator[Value]:
    """A step that is captured once and replayed: as the same steps without, to the bit, and as on the CPU."""
    got, plain, want = (Training(device, perceptron, digits) for device in ("cuda", "cuda", "cpu"))
    for each in (got, plain, want):
        # A first step with momentum is another one than those that follow, and would be captured.
        each.optimiser = torch.optim.SGD(each.model.parameters(), lr=0.05)
    given, wanted = (each.cuda() for each in digits())
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            got.optimiser.zero_grad(set_to_none=True)
            got.loss(given, wanted).backward()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    got.optimiser.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        loss = got.loss(given, wanted)
        loss.backward()
        got.optimiser.step()
    torch.manual_seed(11)
    losses = []
    for _ in range(9):
        new = digits()
        given.copy_(new[0])
        wanted.copy_(new[1])
        graph.replay()
        losses.append(float(loss))
    yield Value(np.array(losses, np.float32), plain.losses(9))
    for one, other in zip(got.weights().values(), plain.weights().values(), strict=True):
        yield Value(one, other)
    yield Value(np.array(losses, np.float32), want.losses(9), WITHIN)


def checkpoint() -> Iterator[Value]:
    """Saved in the middle, loaded into another model, and trained on: as without, to the bit."""
    whole, first, second = (Training("cuda", perceptron, digits) for _ in range(3))
    torch.manual_seed(11)
    for _ in range(8):
        whole.step()
    torch.manual_seed(11)
    for _ in range(4):
        first.step()
    file = io.BytesIO()
    torch.save({"model": first.model.state_dict(), "optimiser": first.optimiser.state_dict()}, file)
    saved = torch.load(io.BytesIO(file.getvalue()), weights_only=True)
    second.model.load_state_dict(saved["model"])
    second.optimiser.load_state_dict(saved["optimiser"])
    for _ in range(4):
        second.step()
    for one, other in zip(second.weights().values(), whole.weights().values(), strict=True):
        yield Value(one, other)


def out_of_memory() -> Iterator[Value]:
    """More than the share is torch's own error, after which the rest of the share can be used."""
    free, total = torch.cuda.mem_get_info()
    kept = torch.ones(1 << 20, device="cuda")
    try:
        torch.empty(total + 1, dtype=torch.uint8, device="cuda")
    except torch.cuda.OutOfMemoryError:
        refused = True
    yield Value(np.array(refused), np.array(True))
    most = torch.empty(free - free // 8, dtype=torch.uint8, device="cuda")
    most[-4:] = 7
    yield Value(most[-4:].cpu().numpy(), np.full(4, 7, np.uint8))
    yield Value(float(kept.sum()), float(1 << 20))


def jiterated() -> Iterator[Value]:
    """Operators that torch compiles with NVRTC, without any setting."""
    x = torch.linspace(0.05, 4, 999, dtype=torch.float64)
    z = torch.complex(x, x.flip(0))
    functions: list[tuple[Callable[[Tensor], Tensor], Tensor]] = [
        (torch.lgamma, x),
        (torch.i0, x),
        (torch.special.i1e, x),
        (torch.erfinv, x / 5),
        (torch.digamma, x),
        (lambda v: torch.fft.fft(v).abs(), z),
        (torch.exp, z),
        (torch.sigmoid, z),
    ]
    for function, given in functions:
        yield Value(function(given.cuda()).cpu().numpy(), function(given).numpy(), 1e-12)


if __name__ == "__main__":
    cases.main(globals())
