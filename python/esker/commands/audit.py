# SPDX-License-Identifier: MIT
"""esker audit: recomputes what result files say, and checks the numbers in Markdown against them.

Needs no native module and no model.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from ..bench.audit import audit_file
from ..bench.claims import audit_markdown


def run(args: argparse.Namespace) -> int:
    files = [_markdown(path) if _is_markdown(path) else _result(path) for path in args.files]
    accepted = all(file["accepted"] for file in files)
    if args.json:
        print(json.dumps({"accepted": accepted, "files": files}), flush=True)
    else:
        for file in files:
            _print(file)
    return 0 if accepted else 1


def _is_markdown(path: str) -> bool:
    return path.lower().endswith((".md", ".markdown"))


def _result(path: str) -> dict[str, Any]:
    verdict, _ = audit_file(path)
    return {
        "file": path,
        "accepted": verdict.accepted,
        "refused": verdict.refused,
        "notes": verdict.notes,
    }


def _markdown(path: str) -> dict[str, Any]:
    claims = audit_markdown(path)
    return {
        "file": path,
        "accepted": all(claim.accepted for claim in claims),
        "claims": [
            {
                "line": claim.line,
                "text": claim.text,
                "verdict": claim.verdict,
                "why": claim.why,
                "source": claim.source,
            }
            for claim in claims
        ],
    }


def _print(file: dict[str, Any]) -> None:
    print(f"{file['file']}: {'accepted' if file['accepted'] else 'refused'}")
    for line in file.get("refused", ()):
        print(f"  refused: {line}")
    for line in file.get("notes", ()):
        print(f"  note: {line}")
    for claim in file.get("claims", ()):
        why = f": {claim['why']}" if claim["why"] else ""
        print(f"  line {claim['line']}: {claim['text']!r} is {claim['verdict']}{why}")
