# SPDX-License-Identifier: MIT
"""Writing a file whole, or not at all; where the user's cache lies."""

from __future__ import annotations

import fcntl
import os
import sys
import tempfile


def cache_folder() -> str:
    """Esker's in the user's cache folder.  It may not exist."""
    if sys.platform == "darwin":
        folder = os.path.expanduser("~/Library/Caches")
    else:
        folder = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return os.path.join(folder, "esker")


def replace_file(path: str | os.PathLike[str], data: bytes) -> None:
    """The path holds the old file or the whole new one, on the disk.  Raises OSError."""
    path = os.fspath(path)
    handle, temporary = tempfile.mkstemp(dir=os.path.dirname(path) or ".", prefix=".esker-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            _sync_to_disk(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _sync_to_disk(descriptor: int) -> None:
    if sys.platform == "darwin":  # fsync() leaves it in the disk's cache
        try:
            fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
            return
        except OSError:
            pass
    os.fsync(descriptor)
