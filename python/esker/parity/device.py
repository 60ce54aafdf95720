# SPDX-License-Identifier: MIT
"""A GPU as the cases see it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .. import _core
from .cases import Array, Extent


class GpuUnderTest:
    """Runs the kernels of the wheel.  Orders of lanes are the hardware's: asking for another runs
    the kernel once more."""

    def __init__(self, device: _core.GpuDevice) -> None:
        self.device = device

    def run(
        self,
        area: str,
        kernel: str,
        args: Any,
        buffers: list[Array],
        *,
        groups: Extent,
        threads: Extent,
        constants: Mapping[int, int],
        order: str,
    ) -> None:
        del area, order
        x, y, z = (*groups, 1, 1)[:3]
        tx, ty, tz = (*threads, 1, 1)[:3]
        self.device.run(
            kernel, sorted(constants.items()), bytes(args), buffers, (x, y, z), (tx, ty, tz)
        )
