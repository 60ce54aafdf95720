# SPDX-License-Identifier: MIT
"""Which devices there are, and which of them `esker selftest` has found right on this machine.

"auto" takes a GPU only after that: its kernels and drivers differ from machine to machine.
"""

from __future__ import annotations

import hashlib
import json
import os

from . import _core
from .errors import DeviceError, UsageError
from .files import cache_folder, replace_file


def known() -> list[str]:
    """Names of the GPU devices that can be asked for: the build's, and those of the environment."""
    brought = [
        name.removeprefix("ESKER_").removesuffix("_LIBRARY").lower()
        for name in sorted(os.environ)
        if name.startswith("ESKER_") and name.endswith("_LIBRARY")
    ]
    return list(dict.fromkeys([*_core.gpu_device_names(), *brought]))


def choose() -> str:
    """What "auto" stands for: the first of the build's GPUs that passed, else "cpu"."""
    passed = _read()
    for name in _core.gpu_device_names():
        try:
            if name in passed and passed[name] == identity(_core.GpuDevice(name)):
                return name
        except (DeviceError, UsageError):
            continue
    return "cpu"


def identity(device: _core.GpuDevice) -> str:
    """Of a device with its driver, and of the kernels: what a passed test is a statement about."""
    sha = hashlib.sha256(device.description.encode())
    for file in _core.kernel_files():
        sha.update(_core.kernel_source(file).encode())
    return sha.hexdigest()


def record(name: str, device: _core.GpuDevice, passed: bool) -> None:
    """Keeps the outcome of a whole test.  Raises OSError."""
    found = _read()
    found.pop(name, None)
    if passed:
        found[name] = identity(device)
    os.makedirs(cache_folder(), exist_ok=True)
    replace_file(_path(), json.dumps(found, indent=1).encode())


def _path() -> str:
    return os.path.join(cache_folder(), "selftest.json")


def _read() -> dict[str, str]:
    try:
        with open(_path(), encoding="utf-8") as file:
            return {str(name): str(value) for name, value in json.load(file).items()}
    except (OSError, ValueError, AttributeError):
        return {}
