"""Whether an error says that there is no space left."""

from __future__ import annotations

import errno

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def is_full(error: BaseException | None) -> bool:
    """Return whether a disk or a quota was full, in the words of Python or of a library in Rust, here or as a cause."""
    if error is None:
        return False
    code = error.errno if isinstance(error, OSError) else None
    return code in FULL or any(f"(os error {number})" in str(error) for number in FULL) or is_full(error.__cause__)
