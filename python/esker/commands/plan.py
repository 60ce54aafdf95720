# SPDX-License-Identifier: MIT
"""esker plan: what a run would put where in memory, and what each decoded token reads.

The native module makes the plan as it makes it for a run; here it is only shown.
"""

from __future__ import annotations

import argparse
from typing import Any

from .. import _core
from ..model import demo_path
from ..options import LoadOptions
from .common import print_json


def run(args: argparse.Namespace) -> int:
    plan = _plan(args.load, args.header, args.what_if or 0)
    if args.json:
        print_json(plan)
    else:
        from ..report import print_plan

        print_plan(plan)
    return 0


def _plan(load: LoadOptions, header: bool, what_if: int) -> dict[str, Any]:
    return _core.plan_file(
        load.model or demo_path(),
        load.ngram_table,
        header=header,
        what_if_bytes=what_if,
        context=load.context,
        memory_bytes=load.memory,
        keep_free_bytes=load.keep_free,
        arena_bytes=load.arena.bytes,
        arena_fraction=load.arena.fraction,
        slots=load.slots,
        min_slots=load.min_slots,
        class_waste=load.class_waste,
        chunk=load.chunk,
        read_ahead=load.read_ahead,
        read_ahead_2=load.read_ahead_2,
    )
