"""Print the findings of rocrate-validator on a ZIP as JSON: check and message, from level recommended, without network.

Its command cannot write JSON about a ZIP (0.13.0). In the environment of the auditors:
`.venv-auditors/bin/python tests/auditors/validate_zip.py ZIP PROFILE CACHE`.
"""

from __future__ import annotations

import json
import sys

from rocrate_validator.models import Severity, ValidationSettings
from rocrate_validator.services import validate

if __name__ == "__main__":
    crate, profile, cache = sys.argv[1:]
    settings = ValidationSettings(
        rocrate_uri=crate,
        profile_identifier=profile,
        requirement_severity=Severity.RECOMMENDED,
        offline=True,
        cache_path=cache,
    )
    result = validate(settings)
    print(json.dumps([[issue.check.identifier, str(issue.message)] for issue in result.get_issues()]))
