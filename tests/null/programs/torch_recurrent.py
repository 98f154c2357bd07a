"""Training steps of an LSTM by cuDNN, and a system of equations by cuSOLVER: `torch_recurrent.py [STEPS]`."""

import sys
from pathlib import Path

import torch

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 10
torch.manual_seed(0)
assert torch.backends.cudnn.is_available()
network = torch.nn.LSTM(64, 128, num_layers=2, batch_first=True).cuda()
inputs = torch.randn(8, 32, 64).cuda()
for _ in range(steps):
    network.zero_grad(set_to_none=True)
    out, (hidden, _) = network(inputs)
    out.square().mean().backward()
    # Symmetric and positive, as far as kernels run.
    gradient = network.weight_hh_l0.grad
    matrix = gradient.mT @ gradient + torch.eye(128, device="cuda")
    factor, failed = torch.linalg.cholesky_ex(matrix)
    solved, also_failed = torch.linalg.solve_ex(matrix, gradient.mT)
    rotation = torch.geqrf(matrix)[0]
    state = hidden.cpu()
loaded = Path("/proc/self/maps").read_text()
assert all(library in loaded for library in ("libcudnn_adv", "libcusolver.so"))
print(f"{steps} steps, {tuple(state.shape)}, {tuple(factor.shape)}, {tuple(solved.shape)}, {tuple(rotation.shape)}")
