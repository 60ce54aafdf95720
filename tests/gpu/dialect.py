# SPDX-License-Identifier: MIT
"""Is a .metal file within the part of Metal's language that the project uses? Asked on any machine.

    python tests/gpu/dialect.py metal/matvec.metal ...

clang, as C++ for OpenCL, knows Metal's address spaces and most of its restrictions; as C++14 it
knows the language's age. What neither rejects is looked for in clang's syntax tree and in the text.
It approximates Apple's compiler: names and overloads are those of tests/simt/msl_check.h.
"""

import functools
import importlib.util
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import simt

# As Metal: no double, no device queues, no writable variables at program scope.
EXTENSIONS = "-cl_khr_fp64,-__opencl_c_fp64,-__opencl_c_device_enqueue"
EXTENSIONS += ",-__opencl_c_program_scope_global_variables"
OPENCL = ["-x", "clcpp", "-cl-std=clc++2021", "-cl-no-stdinc", "-Xclang", f"-cl-ext={EXTENSIONS}"]
CXX14 = [
    "-x",
    "c++",
    "-std=c++14",
    "-Wno-everything",
    "-Werror=c++17-extensions",
    "-Werror=c++20-extensions",
]
# bfloat and half are types of this target in both languages.
COMMON = [
    "-fsyntax-only",
    "-fno-color-diagnostics",
    "-target",
    "x86_64-linux-gnu",
    f"-I{simt.RUNTIME}",
]
DOUBLE = "double precision constant"  # a warning without a name


@functools.cache
def clang():
    """The command of a clang, or None: of the pip package ziglang, else one on PATH."""
    if importlib.util.find_spec("ziglang"):
        return [sys.executable, "-m", "ziglang", "clang"]
    names = ["clang", *(f"clang-{n}" for n in range(30, 15, -1))]
    return next(([found] for name in names if (found := shutil.which(name))), None)


def run_clang(text, flags):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "check.cpp"
        path.write_text(text, encoding="utf-8")
        return subprocess.run(
            [*clang(), *COMMON, *flags, str(path)], capture_output=True, text=True, check=False
        )


def diagnostics(text, flags):
    """Of each error "file:line: message"; the column is left out."""
    found = []
    for line in run_clang(text, flags).stderr.split("\n"):
        m = re.match(r"(.*?):(\d+):\d+: (?:fatal )?(error|warning): (.*)", line)
        if m and (m[3] == "error" or DOUBLE in m[4]):
            found.append(f"{m[1]}:{m[2]}: {m[4]}")
    return found


# What clang's tree shows: pointers and references that name no address space got the generic one.


class Tree:
    def __init__(self, text):
        flags = [
            *OPENCL,
            "-w",
            "-Xclang",
            "-ast-dump=json",
            "-Xclang",
            "-ast-dump-filter=metal::user",
        ]
        dumped = run_clang(text, flags).stdout
        self.text, self.errors = text, []
        self.calls, self.places, self.first = {}, {}, {}
        self.at, self.function = 0, None
        decoder, at = json.JSONDecoder(), dumped.find("{")
        while at >= 0:
            node, end = decoder.raw_decode(dumped, at)
            self.visit(node)
            at = dumped.find("{", end)
        self.find_recursion()

    def report(self, message):
        """At the place of the node at hand, as the #line before it says."""
        before = self.text[: self.at]
        mark = list(re.finditer(r'^#line (\d+) "(.*)"$', before, re.MULTILINE))[-1]
        line = int(mark[1]) + before.count("\n", mark.end() + 1)
        self.errors.append(f"{mark[2]}:{line}: {message}")

    def place(self, node):
        where = node.get("loc", {})
        # Only what stands in the file itself is dumped, so an offset is one in its text.
        self.at = where.get("expansionLoc", where).get("offset", self.at)

    def visit(self, node):
        if not isinstance(node, dict) or node.get("isImplicit") or node.get("explicitlyDefaulted"):
            return
        self.place(node)
        kind, outer = node.get("kind"), self.function
        if kind in ("FunctionDecl", "CXXMethodDecl"):
            self.function = self.first[node["id"]] = self.first.get(
                node.get("previousDecl"), node["id"]
            )
            self.places[self.function] = (node.get("name"), self.at)
            self.calls.setdefault(self.function, set())
        self.check(node, kind)
        for child in node.get("inner", ()):
            self.visit(child)
        self.function = outer

    def check(self, node, kind):
        spelled = node.get("type", {}).get("qualType", "")
        if kind in ("VarDecl", "ParmVarDecl", "FieldDecl") and "__generic" in spelled:
            self.report(f"{node.get('name')}: a pointer or reference without an address space")
        if kind == "VarDecl" and node.get("storageClass") == "static" and self.function:
            self.report(f"{node.get('name')}: a static variable in a function")
        if kind == "MemberExpr" and spelled.startswith("<bound member"):
            (base,) = node["inner"]
            inner = (base.get("inner") or [{}])[0].get("type", {}).get("qualType", "")
            if base.get("castKind") == "AddressSpaceConversion" and re.search(
                "__(global|local|constant)", inner
            ):
                self.report(
                    f"{node.get('name')}: a method of an object that is not the thread's own"
                )
        if kind == "DeclRefExpr" and self.function:
            self.calls[self.function].add(node.get("referencedDecl", {}).get("id"))
        if kind == "MemberExpr" and self.function:
            self.calls[self.function].add(node.get("referencedMemberDecl"))

    def find_recursion(self):
        for function, (name, at) in self.places.items():
            self.at = at
            seen, rest = set(), [function]
            while rest:
                called = {self.first.get(f, f) for f in self.calls.get(rest.pop(), ())} - seen
                seen |= called
                rest += called
            if function in seen:
                self.report(f"{name}: recursion")


# What the text shows. Pattern, message.
LINTS = [
    (r"\bgoto\b", "goto"),
    (r"\bstd::", "std::"),
    (r"(?:[=(,{]|\breturn)\s*\[[^\[\]]*\]\s*[({]", "a lambda"),
    (r"\bthread_elements\s*\(", "thread_elements(): which lane has what is not documented"),
    (r"\.[xyzw]{2,4}\b", "a swizzle"),
    (r"\bmemory_order_(?!relaxed\b)\w+", "an atomic that is not relaxed"),
    (r"\bsimdgroup_matrix\s*<(?!\s*\w+\s*,\s*8\s*,\s*8\s*>)", "a simdgroup_matrix that is not 8x8"),
]
TOGETHER = (
    r"\b(?:simd_(?!is_first|vote)\w+|simdgroup_(?:barrier|load|store|multiply\w*)|"
    r"threadgroup_barrier)\s*\("
)


def lint(path, folders):
    module = simt.msl.Module(path, folders)
    found = []
    for pattern, message in LINTS:
        found += [(m.start(), message) for m in re.finditer(pattern, module.code)]
    for m in re.finditer(r"[^\n]+", module.code):
        if len(re.findall(TOGETHER, m[0])) > 1:
            found.append((m.start(), "two operations of a simdgroup on one line"))
    errors = [str(module.error(*f)) for f in sorted(found)]
    for kernel in module.kernels.values():
        indices = [p.index for p in kernel.parameters if p.attribute == "buffer"]
        if indices != [str(i) for i in range(len(indices))]:
            errors.append(
                f"{module.shown}: kernel {kernel.name}: "
                f"buffers {', '.join(indices)} are not 0, 1, ..."
            )
        for p in kernel.parameters:
            if p.attribute == "buffer" and re.search(
                r"(?<!packed_)\b(?:float|half|bfloat|u?int|u?short|u?char)3\s*[*&]", p.type
            ):
                errors.append(
                    f"{module.shown}: kernel {kernel.name}, {p.name}: a vector of three in a buffer"
                )
    return errors


def check(path, folders=()):
    """What is wrong with a file, as "file:line: message"; an empty list when nothing is."""
    folders = [*folders, *simt.include_dirs()]
    try:
        text = simt.msl.translate("check", path, folders)
    except simt.msl.MslError as error:
        return [str(error)]
    errors = diagnostics("#define CHECK_INSTANCES 1\n" + text, OPENCL)
    errors += diagnostics("#define CHECK_INSTANCES 1\n" + text, CXX14)
    if not errors:
        errors += Tree(text).errors
    return list(dict.fromkeys(errors + lint(path, folders)))


def main(paths):
    errors = [error for path in paths for error in check(path)]
    print("\n".join(errors))
    return bool(errors)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
