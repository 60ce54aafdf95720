# SPDX-License-Identifier: MIT
"""The layer order of ARCHITECTURE.md holds: no include and no import climbs it."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LAYERS = [
    "abi", "base", "io", "formats", "graph", "stream", "backends", "engine", "bindings",
]  # fmt: skip
# Layers that must not know each other although their order would allow it.
FORBIDDEN = {("backends", "stream")}
# Python modules of the package, bottom to top; each may import those before it.
MODULES = [
    "errors", "_core", "options", "files", "profile", "disk", "tiles", "devices", "tokenizer", "chat",
    "session", "model", "parity", "selftest", "gguf_writer", "synth", "bench", "report", "commands", "cli",
    "__init__", "__main__",
]  # fmt: skip
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)
LINES_MAX = 600


def climbing_includes(root: Path) -> list[str]:
    """Every include below root/csrc that climbs the order, as one line of text each."""
    found = []
    for path in sorted((root / "csrc").rglob("*")):
        if path.suffix not in {".h", ".cpp"}:
            continue
        name = path.relative_to(root / "csrc").as_posix()
        here = name.split("/")[0]
        for include in INCLUDE.findall(path.read_text()):
            there = include.split("/")[0]
            if there not in LAYERS:
                if "/" in include:
                    found.append(f"{name} includes {include}, which is in no layer")
                continue
            if LAYERS.index(there) > LAYERS.index(here):
                found.append(f"{name} includes {include}, which lies above it")
            elif (here, there) in FORBIDDEN:
                found.append(f"{name} includes {include}; {here} must not know {there}")
            elif here == there == "backends" and include.split("/")[1] != name.split("/")[1]:
                found.append(f"{name} includes {include}, another backend's")
    return found


def running_code(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node but those under `if TYPE_CHECKING:`, which never runs."""
    guarded = isinstance(tree, ast.If) and isinstance(tree.test, ast.Name)
    if guarded and tree.test.id == "TYPE_CHECKING":
        return
    yield tree
    for child in ast.iter_child_nodes(tree):
        yield from running_code(child)


def climbing_imports(root: Path) -> list[str]:
    """Every import inside root/python/esker of a module that stands later in MODULES."""
    found = []
    package = root / "python" / "esker"
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).with_suffix("").parts
        here = parts[0]
        if here not in MODULES:
            found.append(f"{here} is not in the list of modules")
            continue
        for node in running_code(ast.parse(path.read_text())):
            targets: list[str] = []
            if isinstance(node, ast.ImportFrom):
                base = node.module or ""
                if node.level > 0:
                    inside = list(parts[: len(parts) - node.level]) + [
                        p for p in base.split(".") if p
                    ]
                    targets = [inside[0]] if inside else [a.name for a in node.names]
                elif base == "esker" or base.startswith("esker."):
                    targets = [base.split(".")[1]] if "." in base else [a.name for a in node.names]
            elif isinstance(node, ast.Import):
                targets = [a.name.split(".")[1] for a in node.names if a.name.startswith("esker.")]
            for target in targets:
                if target in MODULES and MODULES.index(target) > MODULES.index(here):
                    found.append(f"{here} imports {target}, which lies above it")
    return found


def test_no_include_climbs():
    assert climbing_includes(ROOT) == []


def test_no_import_climbs():
    assert climbing_imports(ROOT) == []


@pytest.mark.parametrize(
    ("place", "line", "complaint"),
    [
        ("csrc/base/a.h", '#include "io/file.h"', "lies above it"),
        ("csrc/stream/a.cpp", '#include "engine/engine.h"', "lies above it"),
        ("csrc/backends/cpu/a.cpp", '#include "stream/policy.h"', "must not know"),
        ("csrc/backends/cpu/a.cpp", '#include "backends/gpu/a.h"', "another backend's"),
        ("csrc/graph/a.h", '#include "misc/a.h"', "in no layer"),
        ("python/esker/errors.py", "from . import model", "lies above it"),
        ("python/esker/tokenizer.py", "from .cli import main", "lies above it"),
        ("python/esker/options.py", "import esker.model", "lies above it"),
    ],
)
def test_a_climb_is_found(tmp_path, place, line, complaint):
    path = tmp_path / place
    path.parent.mkdir(parents=True)
    path.write_text(line + "\n")
    found = climbing_includes(tmp_path) + climbing_imports(tmp_path)
    assert len(found) == 1
    assert complaint in found[0]


def test_sources_are_short_licensed_and_read_the_environment_in_one_place():
    for path in sorted(ROOT.rglob("*")):
        rel = path.relative_to(ROOT)
        if path.suffix not in {".h", ".cpp", ".py", ".metal"} or rel.parts[0] in {"build", ".venv"}:
            continue
        text = path.read_text()
        # A kernel's instances are a line each, as Metal wants them.
        lines = text.count("\n") - text.count("template [[host_name(")
        assert lines <= LINES_MAX, f"{rel} has more than {LINES_MAX} lines"
        assert "SPDX-License-Identifier: MIT" in text[:200], f"{rel} names no licence"
        home = rel.parts[0] == "tests" or rel.as_posix() == "csrc/base/env.cpp"
        assert "getenv(" not in text or home, f"{rel} reads the environment"
