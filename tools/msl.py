# SPDX-License-Identifier: MIT
"""Translates a Metal kernel file for compilers that do not know Metal's language.

    python tools/msl.py TARGET FILE [-I FOLDER]... [-o OUTPUT]

TARGET  metal   one text with its quoted includes resolved, for Metal's own compiler
        cpu     C++ for tests/simt: one fiber a GPU thread
        cuda    for NVRTC: one text, csrc/backends/gpu/cuda/msl_cuda.h at its head
        check   for clang's check of address spaces and dialect (tests/gpu/dialect.py); never run

Metal's language is C++14 with address spaces and attributes. Macros and a header do most of the
work; what they cannot do is done here, on the text, before any preprocessor runs: quoted includes,
kernel signatures, threadgroup arrays, function constants and the list of kernels. So these must not
come out of a macro. A target is a class that says what becomes of each; the parsing is shared.
Lines keep their numbers, and #line says whose they are, so that compilers, debuggers and sanitizers
speak of the .metal file.
"""

import argparse
import bisect
import dataclasses
import pathlib
import re
import sys

SPACES = re.compile(r"\b(?:device|threadgroup|thread)\b[ \t]*")

# What a kernel may ask for about a thread: attribute -> name in simt::Source.
IDS = {
    "thread_position_in_grid": "kThreadPositionInGrid",
    "thread_position_in_threadgroup": "kThreadPositionInThreadgroup",
    "thread_index_in_threadgroup": "kThreadIndexInThreadgroup",
    "threadgroup_position_in_grid": "kThreadgroupPositionInGrid",
    "threadgroups_per_grid": "kThreadgroupsPerGrid",
    "threads_per_grid": "kThreadsPerGrid",
    "threads_per_threadgroup": "kThreadsPerThreadgroup",
    "threads_per_simdgroup": "kThreadsPerSimdgroup",
    "thread_index_in_simdgroup": "kThreadIndexInSimdgroup",
    "simdgroup_index_in_threadgroup": "kSimdgroupIndexInThreadgroup",
    "simdgroups_per_threadgroup": "kSimdgroupsPerThreadgroup",
}


class MslError(Exception):
    """Outside what can be translated; the text begins with file and line."""


# Reading: one text of a file and its includes.


def blank(text):
    """Spaces in place of everything but line ends."""
    return re.sub(r"[^\n]", " ", text)


def without_comments(text):
    def replace(match):
        return match[0] if match[0][0] in "\"'" else blank(match[0])

    pattern = r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|/\*.*?\*/|//[^\n]*'
    return re.sub(pattern, replace, text, flags=re.DOTALL)


def shown(path):
    """A path as messages show it: relative to the repository when it lies there."""
    root = pathlib.Path(__file__).resolve().parent.parent
    path = pathlib.Path(path).resolve()
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else path.as_posix()


def flatten(path, include_dirs=(), comments=True, seen=None):
    """The file with every quoted include in its place, each once, between #line directives."""
    path = pathlib.Path(path).resolve()
    seen = set() if seen is None else seen
    seen.add(path)
    text = path.read_text(encoding="utf-8")
    code = without_comments(text)
    lines = (text if comments else code).split("\n")
    out = [f'#line 1 "{shown(path)}"']
    for number, line in enumerate(code.split("\n"), 1):
        if re.match(r"\s*#\s*pragma\s+once\b", line):
            out.append("")
            continue
        include = re.match(r'\s*#\s*include\s*"([^"]+)"', line)
        if not include:
            out.append(lines[number - 1])
            continue
        found = [
            p
            for p in (pathlib.Path(d) / include[1] for d in [path.parent, *include_dirs])
            if p.is_file()
        ]
        if not found:
            raise MslError(f"{shown(path)}:{number}: cannot find {include[1]}")
        if found[0].resolve() not in seen:
            out.append(flatten(found[0], include_dirs, comments, seen))
            out.append(f'#line {number + 1} "{shown(path)}"')
        else:
            out.append("")
    return "\n".join(out)


# Parsing: where in the text the things lie that a target rewrites.


@dataclasses.dataclass
class Parameter:
    type: str  # "device const uchar*"
    name: str
    attribute: str  # "buffer", "threadgroup", or one of IDS
    index: str = ""  # of a buffer: a number or an enumerator
    optional: bool = False  # bound only under a function constant


@dataclasses.dataclass
class Kernel:
    name: str
    is_template: bool
    parameters: list
    max_threads: str  # of [[max_total_threads_per_threadgroup]], "" where none is said
    body: tuple = ()  # positions of its braces
    constants: list = ()  # names of the function constants it may read


@dataclasses.dataclass
class Constant:
    type: str
    name: str
    index: str = ""  # of a function constant
    value: str = ""  # of a constant computed from function constants


@dataclasses.dataclass
class Array:
    type: str
    name: str
    extents: str  # "[4][32]"
    kernel: Kernel
    number: int


@dataclasses.dataclass
class Instance:
    """A kernel by the name that the host knows."""

    name: str
    function: str  # "matvec<Q4_K, 2>"
    kernel: Kernel


@dataclasses.dataclass
class Table:
    """`constant` at program scope; the item covers what stands before the type."""


@dataclasses.dataclass
class Item:
    begin: int
    end: int
    what: object


class Module:
    """A translated file: its text and the items in it, by position."""

    def __init__(self, path, include_dirs=()):
        self.path = pathlib.Path(path)
        self.include_dirs = include_dirs
        self.shown = shown(path)
        code = flatten(path, include_dirs, comments=False)
        drop = r"^[ \t]*(?:#\s*include\s*<metal_\w+>|using\s+namespace\s+metal\s*;)"
        self.code = re.sub(drop, lambda m: blank(m[0]), code, flags=re.MULTILINE)
        self.marks = [
            (m.end() + 1, int(m[1]), m[2])
            for m in re.finditer(r'^#line (\d+) "(.*)"$', code, re.MULTILINE)
        ]
        self.depths = brace_depths(self.code)
        self.items, self.kernels, self.instances, self.constants = [], {}, [], []
        self.find_constants()
        self.find_kernels()
        self.find_instances()
        self.find_arrays()
        self.find_uses()
        self.items.sort(key=lambda item: item.begin)

    def where(self, position):
        mark = self.marks[max(0, bisect.bisect_right(self.marks, (position, 1 << 60, "")) - 1)]
        return mark[2], mark[1] + self.code.count("\n", mark[0], position)

    def error(self, position, message):
        file, line = self.where(position)
        return MslError(f"{file}:{line}: {message}")

    def depth(self, position):
        """How many braces are open; those of namespaces do not count."""
        return self.depths[1][bisect.bisect_right(self.depths[0], position) - 1]

    def closing(self, position):
        """Where the bracket that opens at a position closes."""
        pair = {"(": ")", "[": "]", "{": "}", "<": ">"}
        opening = self.code[position]
        depth = 0
        for match in re.finditer(f"[{re.escape(opening + pair[opening])}]", self.code[position:]):
            depth += 1 if match[0] == opening else -1
            if depth == 0:
                return position + match.start()
        raise self.error(position, f"'{opening}' is never closed")

    def find_constants(self):
        function = (
            r"\bconstant\s+(\w+)\s+(\w+)\s*\[\[\s*function_constant\s*\(\s*(\w+)\s*\)\s*\]\]\s*;"
        )
        for m in re.finditer(function, self.code):
            self.constants.append(Constant(m[1], m[2], index=m[3]))
            self.items.append(Item(m.start(), m.end(), self.constants[-1]))
        taken = {item.begin for item in self.items}
        names = [c.name for c in self.constants]
        computed = r"\b(?:static\s+)?(?:constexpr\s+)?constant\s+(\w+)\s+(\w+)\s*=\s*([^;{}]*);"
        for m in re.finditer(computed, self.code):
            if (
                names
                and re.search(rf"\b(?:{'|'.join(names)})\b", m[3])
                and self.depth(m.start()) == 0
            ):
                self.constants.append(Constant(m[1], m[2], value=m[3].strip()))
                names.append(m[2])
                self.items.append(Item(m.start(), m.end(), self.constants[-1]))
                taken.add(m.start())
        for m in re.finditer(r"\bconstant\s+(?=[\w:]+(?:\s*<[^;<>]*>)?\s+\w+\s*[\[=])", self.code):
            if (
                m.start() not in taken
                and self.depth(m.start()) == 0
                and self.at_statement(m.start())
            ):
                self.items.append(Item(m.start(), m.end(), Table()))

    def at_statement(self, position):
        before = self.code[:position].rstrip()
        line = before[before.rfind("\n") + 1 :].lstrip()
        return not before or before[-1] in "{};" or line.startswith("#")

    def find_kernels(self):
        attribute = (
            r"(?:\[\[\s*kernel\b([^\]]*)\]\]|\bkernel\b)\s*"
            r"(?:\[\[([^\]]*)\]\]\s*)?void\s+(\w+)\s*\("
        )
        for m in re.finditer(attribute, self.code):
            end = self.closing(m.end() - 1)
            brace = re.compile(r"\s*\{").match(self.code, end + 1)
            if not brace:
                raise self.error(m.start(), f"kernel {m[3]}: no body follows its parameters")
            threads = re.search(
                r"max_total_threads_per_threadgroup\s*\(\s*(\w+)\s*\)", (m[1] or "") + (m[2] or "")
            )
            is_template = bool(re.search(r"\btemplate\s*<[^;{}]*>\s*$", self.code[: m.start()]))
            kernel = Kernel(m[3], is_template, [], threads[1] if threads else "")
            if kernel.name in self.kernels:
                raise self.error(m.start(), f"kernel {kernel.name} is defined twice")
            kernel.parameters = self.parameters(kernel, m.end(), end)
            kernel.body = (brace.end() - 1, self.closing(brace.end() - 1))
            self.kernels[kernel.name] = kernel
            self.items.append(Item(m.start(), end + 1, kernel))
            if not is_template:
                self.instances.append(Instance(kernel.name, kernel.name, kernel))

    def parameters(self, kernel, begin, end):
        out, position = [], begin
        for text in split(self.code[begin:end]):
            at = self.code.index(text, position)
            position = at + len(text)
            flat = re.sub(r"\s+", " ", text).strip()
            m = re.match(
                r"(.*?)(\w+) ?\[\[ ?(\w+) ?(?:\( ?(\w+) ?\))? ?(, ?function_constant\(\w+\))? ?\]\]$",
                flat,
            )
            if not m:
                raise self.error(
                    at, f"kernel {kernel.name}: parameter without one attribute: {flat}"
                )
            parameter = Parameter(m[1].strip(), m[2], m[3], m[4] or "", bool(m[5]))
            self.check_parameter(kernel, parameter, at)
            out.append(parameter)
        return out

    def check_parameter(self, kernel, parameter, at):
        def error(message):
            return self.error(at, f"kernel {kernel.name}, {parameter.name}: {message}")

        if parameter.attribute == "buffer":
            if not parameter.index:
                raise error("buffer without an index")
            if not re.match(r"(?:const )?(?:device|constant)\b", parameter.type):
                raise error("write the address space first, device or constant")
            if parameter.type[-1] not in "*&":
                raise error("a buffer is a pointer or a reference")
        elif parameter.attribute == "threadgroup":
            if not re.match(r"threadgroup\b.*\*$", parameter.type) or not parameter.index:
                raise error("want a threadgroup pointer with an index")
        elif parameter.attribute not in IDS:
            raise error(f"[[{parameter.attribute}]] is not known here")

    def find_instances(self):
        head = (
            r'\btemplate\s*\[\[\s*host_name\s*\(\s*"(\w+)"\s*\)\s*\]\]\s*'
            r"(?:\[\[\s*kernel\s*\]\]|kernel\b)?\s*decltype\s*\("
        )
        for m in re.finditer(head, self.code):
            close = self.closing(m.end() - 1)
            function = re.sub(r"\s+", " ", self.code[m.end() : close]).strip()
            end = self.code.index(";", close)
            again = re.sub(r"\s+", " ", self.code[close + 1 : end]).strip()
            if re.sub(r"\(.*\)$", "", again) != function:
                raise self.error(m.start(), f"{m[1]}: decltype({function}) declares {again}")
            kernel = self.kernels.get(function.split("<")[0].strip())
            if kernel is None:
                raise self.error(m.start(), f"{m[1]}: there is no kernel {function}")
            if any(instance.name == m[1] for instance in self.instances):
                raise self.error(m.start(), f"two kernels are named {m[1]}")
            self.instances.append(Instance(m[1], function, kernel))
            self.items.append(Item(m.start(), end + 1, self.instances[-1]))

    def find_arrays(self):
        number = 0
        for m in re.finditer(r"\bthreadgroup\s+", self.code):
            if not self.at_statement(m.start()) or self.depth(m.start()) == 0:
                continue
            end = self.code.index(";", m.start())
            text = self.code[m.end() : end]
            if re.search(r"[*&]", re.sub(r"<[^<>]*>|\[[^\]]*\]", "", text)):
                continue  # a pointer to threadgroup memory
            extents = r"(?:\[[^\[\]]*(?:\[[^\[\]]*\][^\[\]]*)*\]\s*)*"
            kind = r"(?:const\s+)?[\w:]+(?:\s*<[^;(){}]*>)?"
            declaration = re.match(rf"({kind})\s+(\w+)\s*({extents})$", text)
            if not declaration:
                message = "a threadgroup variable is one name a declaration, without an initialiser"
                raise self.error(m.start(), message)
            kernel = next(
                (k for k in self.kernels.values() if k.body[0] < m.start() < k.body[1]), None
            )
            if kernel is None or self.depth(m.start()) != self.depth(kernel.body[0]) + 1:
                raise self.error(
                    m.start(), "a threadgroup variable belongs in the outermost scope of a kernel"
                )
            array = Array(declaration[1], declaration[2], declaration[3].strip(), kernel, number)
            self.items.append(Item(m.start(), end + 1, array))
            number += 1

    def find_uses(self):
        """Which function constants a kernel may read: those named in it and in what it may call."""
        bodies = {}
        for m in re.finditer(r"\b(\w+)\s*\(", self.code):
            close = self.closing(m.end() - 1)
            brace = re.compile(r"\s*(?:const\s*)?\{").match(self.code, close + 1)
            if brace and m[1] not in ("if", "for", "while", "switch"):
                body = self.code[brace.end() : self.closing(brace.end() - 1)]
                bodies.setdefault(m[1], set()).update(re.findall(r"\b[A-Za-z_]\w*", body))
        for constant in self.constants:
            if constant.value:
                bodies.setdefault(constant.name, set()).update(re.findall(r"\w+", constant.value))
        names = {c.name for c in self.constants if c.index}
        optional = set(re.findall(r"\bis_function_constant_defined\s*\(\s*(\w+)", self.code))
        for kernel in self.kernels.values():
            reached, rest = set(), [kernel.name]
            while rest:
                name = rest.pop()
                rest += [n for n in bodies.get(name, ()) if n not in reached]
                reached.update(bodies.get(name, ()))
            kernel.constants = sorted(reached & names - optional)

    def render(self, target):
        """The text with every item replaced as the target says."""
        out, position = [], 0
        for item in self.items:
            new = target.replace(self, item.what, self.code[item.begin : item.end])
            lines = self.code.count("\n", item.begin, item.end) - new.count("\n")
            out.append(target.text(self.code[position : item.begin]) + new + "\n" * lines)
            position = item.end
        out.append(target.text(self.code[position:]))
        return "".join(out)


def brace_depths(code):
    """Positions at which the depth of braces changes, and the depths from there on."""
    positions, depths, stack = [0], [0], []
    for m in re.finditer(r"(\bnamespace\b\s*[\w:]*\s*)?([{}])", code):
        if m[2] == "{":
            stack.append(m[1] is None)
        elif stack:
            stack.pop()
        positions.append(m.end())
        depths.append(sum(stack))
    return positions, depths


def split(text):
    """The parts of a list between commas that no bracket encloses."""
    parts, depth, begin = [], 0, 0
    for i, character in enumerate(text):
        depth += (character in "(<[{") - (character in ")>]}")
        if character == "," and depth == 0:
            parts.append(text[begin:i])
            begin = i + 1
    return [p.strip() for p in [*parts, text[begin:]] if p.strip()]


# Targets.


class Cpu:
    """C++ for tests/simt/msl.h. Address spaces go; kernels become functions that a table lists."""

    def text(self, text):
        text = re.sub(r"\bconst\s+(device|threadgroup|thread)\b", r"\1 const", text)
        text = re.sub(r"\bconst\s+constant\b|\bconstant\s+const\b|\bconstant\b", "const", text)
        return SPACES.sub("", text)

    def replace(self, module, what, text):
        if isinstance(what, Constant):
            return f"static {what.type} {what.name};" + (
                f" static bool {what.name}_is_set;" if what.index else ""
            )
        if isinstance(what, Table):
            return "const "
        if isinstance(what, Instance):
            return ""
        if isinstance(what, Array):
            return (
                f"typedef {self.text(what.type)} {what.name}_type{self.text(what.extents)}; "
                f"auto& {what.name} = *static_cast<{what.name}_type*>("
                f"simt::threadgroup_memory({what.number}, "
                f'sizeof({what.name}_type), "{what.name}", simt::Site("threadgroup memory")));'
            )
        parameters = ", ".join(f"{p.type} {p.name}" for p in what.parameters)
        return f"static void {what.name}({self.text(parameters)})"

    def translate(self, module):
        constants = [c for c in module.constants if c.index]
        out = [
            f"// Made by tools/msl.py from {module.shown}; do not edit.",
            '#include "msl.h"',
            "#define is_function_constant_defined(name) name##_is_set",
            "namespace metal {",
            "namespace {",
            module.render(self),
            '#line 1 "kernel table"',
            "void simt_compute_constants() {",
            *[f"  {c.name} = {c.value};" for c in module.constants if c.value],
            "}",
            f"const simt::Module simt_module({quoted(module.shown)}, {{",
            *[
                self.kernel_row(i, instance, constants)
                for i, instance in enumerate(module.instances)
            ],
            "}, {",
            *[
                f'  {{"{c.name}", {c.index}, "{c.type}", '
                f"&{c.name}, sizeof {c.name}, &{c.name}_is_set}},"
                for c in constants
            ],
            "}, simt_compute_constants);",
            "}  // namespace",
            "}  // namespace metal",
        ]
        return "\n".join(out) + "\n"

    def kernel_row(self, i, instance, constants):
        """A file of many kernels is compiled in several parts, each with its share of them."""
        kernel = instance.kernel
        sources = {"buffer": "kBuffer", "threadgroup": "kThreadgroup", **IDS}
        parameters = ", ".join(
            f'{{"{p.name}", simt::Source::{sources[p.attribute]}, '
            f"{p.index or 0}, {str(p.optional).lower()}}}"
            for p in kernel.parameters
        )
        used = ", ".join(str(i) for i, c in enumerate(constants) if c.name in kernel.constants)
        call = f"simt::Call<&{self.text(instance.function)}>"
        threads = kernel.max_threads or "simt::kThreadsMax"
        row = f'  {{"{instance.name}", {call}::run, {call}::types, '
        row += f"{{{parameters}}}, {{{used}}}, {threads}}},"
        return f"#if {i} % SIMT_PARTS == SIMT_PART\n{row}\n#endif"


class Check:
    """For tests/simt/msl_check.h, as C++ for OpenCL or C++14: the text as far as clang takes it."""

    def text(self, text):
        return text

    def replace(self, module, what, text):
        if isinstance(what, Constant):
            return f"constant {what.type} {what.name} = {what.type}(1);"
        if isinstance(what, Table):
            return text
        if isinstance(what, Instance):
            # A kernel's first has what can go wrong with address spaces; types are in the others.
            first = next(i for i in module.instances if i.kernel is what.kernel)
            condition = "" if what is first else "CHECK_ALL_INSTANCES"
            declaration = f"template decltype({what.function}) {what.function};"
            return f"{condition}({declaration})" if condition else declaration
        if isinstance(what, Array):
            if what.kernel.is_template:
                # OpenCL knows such variables in kernels only, and no template is one.
                kind = f"threadgroup {what.type} (*){what.extents}"
                return f"threadgroup {what.type} (&{what.name}){what.extents} = *({kind})0;"
            return text
        parameters = ", ".join(f"{p.type} {p.name}" for p in what.parameters)
        return f"{'' if what.is_template else 'kernel '}void {what.name}({parameters})"

    def translate(self, module):
        head = ['#include "msl_check.h"', "namespace metal {", "namespace user {"]
        return "\n".join([*head, module.render(self), "}", "}", ""])


class Metal:
    """One text for Metal's own compiler: only includes are resolved."""

    def translate(self, module):
        return flatten(module.path, module.include_dirs) + "\n"


def quoted(text):
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


TARGETS = {"cpu": Cpu, "check": Check, "metal": Metal, "cuda": None}  # msl_cuda.py has the last


def translate(target, path, include_dirs=(), only=""):
    """The text that a compiler of the target takes. Raises MslError.

    only: a pattern of the names of the kernels to make, all without one.
    """
    module = Module(path, include_dirs)
    module.instances = [i for i in module.instances if re.search(only, i.name)]
    made = TARGETS[target]
    if made is None:
        from msl_cuda import Cuda as made
    return made().translate(module)


def main(arguments):
    parser = argparse.ArgumentParser(description="Translates a Metal kernel file.")
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("file")
    parser.add_argument("-I", dest="include_dirs", action="append", default=[], metavar="FOLDER")
    parser.add_argument("-o", dest="output")
    options = parser.parse_args(arguments)
    try:
        text = translate(options.target, options.file, options.include_dirs)
    except MslError as error:
        print(error, file=sys.stderr)
        return 1
    if options.output:
        pathlib.Path(options.output).write_text(text, encoding="utf-8", newline="\n")
    else:
        sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
