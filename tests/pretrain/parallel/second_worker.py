"""The worker of the parity tests with a second architecture registered: torchrun second_worker.py CASES.json."""

from pipeline.model.architectures import ARCHITECTURES
from pipeline.model.networks import NETWORKS
from tests.pretrain.parallel import parity_worker

ARCHITECTURES["second"] = "tests.model.second"
NETWORKS["second"] = "tests.model.second_network"

if __name__ == "__main__":
    parity_worker.main()
