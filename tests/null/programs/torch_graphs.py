"""A decoder with a CUDA graph for each of 8 batch sizes, as servers of language models have them:
`torch_graphs.py [STEPS]`."""

import sys

import torch

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 10
torch.manual_seed(0)
WIDTH, CONTEXT = 256, 64


class Decoder(torch.nn.Module):
    """One token for each sequence, with a cache of keys and values that stays where it is."""

    def __init__(self, batch: int) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(WIDTH, 4 * WIDTH) for _ in range(4))
        self.register_buffer("keys", torch.zeros(4, batch, CONTEXT, WIDTH))
        self.register_buffer("values", torch.zeros(4, batch, CONTEXT, WIDTH))

    def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        for layer, keys, values in zip(self.layers, self.keys, self.values, strict=True):
            q, k, v, rest = layer(x)[:, None].chunk(4, dim=-1)
            keys.index_copy_(1, at, k)
            values.index_copy_(1, at, v)
            x = x + (torch.nn.functional.scaled_dot_product_attention(q, keys, values) * torch.sigmoid(rest))[:, 0]
        return x


pool, graphs = torch.cuda.graph_pool_handle(), {}
with torch.inference_mode():
    for batch in (32, 24, 16, 8, 4, 3, 2, 1):
        model = Decoder(batch).cuda()
        x, at = torch.zeros(batch, WIDTH, device="cuda"), torch.zeros(1, dtype=torch.long, device="cuda")
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            model(x, at)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            result = model(x, at)
        graphs[batch] = graph, x, at, result
    sizes = list(graphs)
    tokens = torch.randn(32, WIDTH).pin_memory()
    for step in range(steps):
        graph, x, at, result = graphs[sizes[step % len(sizes)]]
        x.copy_(tokens[: len(x)], non_blocking=True)
        at.fill_(step % CONTEXT)
        graph.replay()
        result.cpu()

    compiled = torch.compile(
        torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU()).cuda(), mode="reduce-overhead"
    )
    for _ in range(steps):
        last = compiled(torch.randn(8, WIDTH, device="cuda")).cpu()
print(f"{steps} steps, {len(graphs)} graphs, {tuple(last.shape)}")
