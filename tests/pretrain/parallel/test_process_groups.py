"""Values for other processes keep their order, on the host or still on the device."""

import numpy as np
import torch
import torch.distributed as dist

from pipeline.pretrain.parallel.process_groups import HostCopy, all_gather_values, all_reduce_sum

CPU = torch.device("cpu")


def test_collectives_keep_order_and_full_precision() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        table = all_gather_values(CPU, 2.0**40 + 1, torch.tensor(0.25), 3.0, torch.tensor(5))
        assert HostCopy(table).wait_for_host_copy().tolist() == [[2.0**40 + 1, 0.25, 3.0, 5.0]]
        assert all_reduce_sum(CPU, np.array([[1.0, 2.0**40 + 1]])).tolist() == [[1.0, 2.0**40 + 1]]
    finally:
        dist.destroy_process_group()
