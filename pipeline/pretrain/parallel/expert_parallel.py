"""Expert parallelism (Lepikhin et al. 2020, GShard): processes divide the experts and exchange tokens.

An all-to-all before the experts sends each row to the process of its expert; one after them returns the results. Rows
are neither dropped nor padded: processes first exchange the numbers of rows.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard, distribute_tensor

from pipeline.model.decoder import Block, Decoder
from pipeline.model.mixture_of_experts import Experts, permute_rows
from pipeline.model.torch_private import all_to_all_single_autograd


def find_experts(model: Decoder) -> dict[int, Experts]:
    """Return the experts by layer on this process; empty for an architecture without experts."""
    blocks = enumerate(model.blocks)
    return {n: b.feed_forward for n, b in blocks if isinstance(b, Block) and isinstance(b.feed_forward, Experts)}


def set_load_balancing(model: Decoder, weight: float, tokens: int, context: dist.ProcessGroup | None = None) -> None:
    """Set the weight of the load-balancing loss, divided by a process's tokens of a step like the gradients."""
    for experts in find_experts(model).values():
        experts.router.balance, experts.router.context = weight / tokens, context


def measure_largest_share(model: Decoder, device: torch.device) -> dict[str, Tensor]:
    """Return the largest share of tokens of an expert in any layer since the last call, over all processes.

    It stays on the device, so that nobody waits.
    """
    architecture = model.architecture
    if not architecture.experts or not architecture.experts_per_token:
        return {}
    visits_LN = torch.zeros(architecture.layers, architecture.experts, dtype=torch.float64, device=device)
    for layer, visits_N in model.visits.items():
        visits_LN[layer] = visits_N
    model.visits.clear()
    dist.all_reduce(visits_LN)
    shares_LN = visits_LN / visits_LN.sum(1, keepdim=True) * architecture.experts_per_token
    return {"largest_expert_share": shares_LN.max()}


def exchange_row_counts(visits_N: Tensor, group: dist.ProcessGroup) -> tuple[Tensor, list[int], list[int]]:
    """Return the rows of each own expert from each process, (P, N / P), and the rows to and from each process."""
    sent_PN = visits_N.view(group.size(), -1)
    received_PN = torch.empty_like(sent_PN)
    dist.all_to_all_single(received_PN, sent_PN, group=group)
    return received_PN, sent_PN.sum(1).tolist(), received_PN.sum(1).tolist()


def dispatch_and_combine(
    compute: Callable[[Tensor, Tensor], Tensor], x_RD: Tensor, visits_N: Tensor, *, group: dist.ProcessGroup
) -> Tensor:
    """Send rows to the processes of their experts, compute there, and return the results in the same order."""
    received_PN, to_send, to_receive = exchange_row_counts(visits_N, group)
    x_RD = all_to_all_single_autograd(x_RD, to_receive, to_send, group)
    every_PN = torch.arange(received_PN.shape[1], device=x_RD.device).repeat(group.size())
    expert_R = every_PN.repeat_interleave(received_PN.flatten(), output_size=len(x_RD))
    order_R = expert_R.argsort(stable=True)
    back_R = order_R.argsort()
    y_RD = compute(permute_rows(x_RD, order_R, back_R), received_PN.sum(0))
    return all_to_all_single_autograd(permute_rows(y_RD, back_R, order_R), to_send, to_receive, group)


def apply(model: Decoder, mesh: DeviceMesh) -> None:
    """Divide the experts of a model, or of a pipeline stage, over a one-dimensional mesh."""
    for experts in find_experts(model).values():
        for stack in (experts.gate, experts.up, experts.down):
            stack.weight = nn.Parameter(distribute_tensor(stack.weight, mesh, [Shard(0)]))
        experts.exchange = partial(dispatch_and_combine, group=mesh.get_group())
