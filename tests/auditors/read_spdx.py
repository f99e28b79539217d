"""Reads an SPDX 3.0.1 document with the model that SPDX makes of its own rules; run in `.venv-auditors`."""

from __future__ import annotations

import sys
from collections import Counter

from spdx_python_model import v3_0_1 as spdx

objects = spdx.SHACLObjectSet()
with open(sys.argv[1], encoding="utf-8") as document:
    spdx.JSONLDDeserializer().read(document, objects)
dangling = objects.link()
if dangling:
    sys.exit(f"it speaks of what is not there: {sorted(dangling)}")
for kind, number in sorted(Counter(type(one).__name__ for one in objects.foreach()).items()):
    print(kind, number)
