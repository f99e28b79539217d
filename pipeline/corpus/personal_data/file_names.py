"""`python -m pipeline.corpus.personal_data.file_names`: names of files that hold personal data, told with markers.

A process of its own: what finds personal data takes tens of megabytes, which a login node does not keep for a run.
"""

from __future__ import annotations

import json
import sys

from pipeline.corpus.personal_data.fields import marked
from pipeline.corpus.settings import PersonalData


def main() -> None:
    """Read pairs of settings and names as JSON, and write for each the first name with markers, or null."""
    found = []
    for settings, names in json.load(sys.stdin):
        kinds = PersonalData.model_validate(settings)
        found.append(next((shown for name in names if (shown := marked(name, kinds)) != name), None))
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
