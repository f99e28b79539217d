"""Train some steps on a CPU with `training.float8`, whose products torchao emulates there, and without.

python float8_steps.py PACKAGES, the folder of torchao. Prints JSON: the losses, and the names of converted modules and
of parameters, by the value of float8.
"""

import json
import sys

import torch

sys.path.append(sys.argv[1])  # that of torchao
sys.path.append("benchmarks")
import torchao.float8
from gpu_training import Native
from torchao.float8.float8_linear import Float8Linear

from pipeline.model import compilation_and_precision
from pipeline.pretrain.parallel.backend import Batch
from pipeline.pretrain.processes import device_and_process_group
from pipeline.pretrain.settings import SegmentSettings

VOCABULARY = 96
convert = torchao.float8.convert_to_float8_training
emulated = torchao.float8.Float8LinearConfig(emulate=True)
torchao.float8.convert_to_float8_training = lambda model, **options: convert(model, config=emulated, **options)
compilation_and_precision.check_float8 = lambda device: None
device = device_and_process_group.join_process_group("none")
training = {"strategy": "no_shard", "precision": "bf16", "compile": True, "steps": 9, "learning_rate": 0.003}
training |= {"sequence_length": 32, "batch_size": 4, "micro_batch_size": 2}
shape = {"layers": 2, "width": 64, "feed_forward_width": 136, "heads": 4, "key_value_heads": 2}
results = {}
for float8 in (False, True):
    values = {"seed": 1, "first_step": 0, "last_step": 1, "architecture": shape}
    settings = SegmentSettings.model_validate({**values, "training": {**training, "float8": float8}})
    torch.manual_seed(5)
    trainer = Native(settings, VOCABULARY, device)
    tokens = torch.randint(VOCABULARY, (4, 33), generator=torch.Generator().manual_seed(6))
    batches = [Batch(rows[:, :-1].contiguous(), rows[:, 1:].contiguous(), None) for rows in tokens.split(2)]
    losses = [trainer.step(batches) for _ in range(9)]
    model = trainer.backend.model
    converted = [name for name, module in model.named_modules() if isinstance(module, Float8Linear)]
    results[str(float8)] = (losses, converted, [name for name, _ in model.named_parameters()])
print(json.dumps(results))
