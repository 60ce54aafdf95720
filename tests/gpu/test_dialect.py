# SPDX-License-Identifier: MIT
"""Kernel files are within the project's part of Metal's language; every rule has its breach."""

from pathlib import Path

import dialect
import pytest

HERE = Path(__file__).resolve().parent
METAL = HERE.parents[1] / "metal"
GOOD = [*sorted(METAL.glob("*.metal")), HERE / "operations.metal", HERE / "faults" / "faults.metal"]

pytestmark = pytest.mark.skipif(
    dialect.clang() is None, reason="no clang: want pip install ziglang, or clang on PATH"
)


@pytest.mark.parametrize("path", GOOD, ids=[p.stem for p in GOOD])
def test_kernels_are_within_the_dialect(path):
    assert dialect.check(path) == []


HEAD = """#include <metal_stdlib>
using namespace metal;
"""
KERNEL = """[[kernel]] void f(device float* out [[buffer(0)]], constant float* in [[buffer(1)]],
                       device atomic_uint* counts [[buffer(2)]],
                       uint i [[thread_index_in_simdgroup]]) {{
  threadgroup float shared[32];
  shared[i] = in[i];
  float v = out[i];
  {}
}}
"""

# Text before the kernel, text in it, message.
BAD = {
    "pointer without a space": (
        "inline float g(float* p) { return *p; }",
        "",
        "p: a pointer or reference without",
    ),
    "reference without a space": (
        "inline void g(float& x) { x = 1.0f; }",
        "",
        "x: a pointer or reference without",
    ),
    "member without a space": ("struct S { float* p; };", "", "p: a pointer or reference without"),
    "variable without a space": (
        "",
        "float* p = out; v = *p;",
        "p: a pointer or reference without",
    ),
    "device for thread": (
        "inline float g(thread float* p) { return *p; }",
        "v = g(out);",
        "no matching function",
    ),
    "threadgroup for device": (
        "inline float g(device float* p) { return *p; }",
        "v = g(shared);",
        "no matching",
    ),
    "cast between spaces": ("", "v = *(device float*)shared;", "mismatching address spaces"),
    "through a template": (
        "template <typename P> float g(P p) { thread float* q = p; return *q; }",
        "v = g(out);",
        "cannot initialize a variable",
    ),
    "write to constant": ("", "in[i] = v;", "read-only variable is not assignable"),
    "table without a space": ("float table[2] = {1.0f, 2.0f};", "", "program scope variable"),
    "threadgroup array in a helper": (
        "inline void g() { threadgroup float x[4]; }",
        "",
        "outermost scope of a kernel",
    ),
    "threadgroup array in a block": (
        "",
        "if (i > 3) { threadgroup float x[4]; x[0] = v; }",
        "outermost scope",
    ),
    "threadgroup array with an initialiser": (
        "",
        "threadgroup float x[1] = {0.0f};",
        "without an initialiser",
    ),
    "double": ("", "double d = v; v = float(d);", "double"),
    "literal without f": ("", "v = v * 0.5;", "double precision constant"),
    "virtual": ("struct S { virtual float g(); };", "", "virtual"),
    "throw": ("", "if (v > 1.0f) throw 1;", "exceptions"),
    "function pointer": (
        "inline float g() { return 1.0f; }",
        "float (*p)() = g; v = p();",
        "pointers to functions",
    ),
    "new": ("", "thread float* p = new float; v = *p;", "new"),
    "std": ("", "v = std::min(v, 1.0f);", "std"),
    "array of unknown length": (
        "",
        "float x[i]; v = x[0];",
        "array size is not a constant expression",
    ),
    "method of a device object": (
        "struct S { float v; float g() const { return v; } };",
        "device S* s = (device S*)out; v = s->g();",
        "g: a method of an object that is not the thread's own",
    ),
    "recursion": (
        "inline float g(float x) { return x > 1.0f ? g(x - 1.0f) : x; }",
        "v = g(v);",
        "g: recursion",
    ),
    "mutual recursion": (
        """float h(float x);
inline float g(float x) { return h(x); }
inline float h(float x) { return x > 1.0f ? g(x - 1.0f) : x; }""",
        "v = g(v);",
        "recursion",
    ),
    "lambda": ("", "auto g = [&](float x) { return x + v; }; v = g(v);", "a lambda"),
    "goto": ("", "goto end; end: v = 1.0f;", "goto"),
    "static variable": (
        "",
        "static constant float x = 1.0f; v = x;",
        "x: a static variable in a function",
    ),
    "if constexpr": ("", "if constexpr (sizeof(v) == 4) v = 1.0f;", "C++17 extension"),
    "nested namespace": ("namespace a::b { constant int x = 1; }", "", "C++17 extension"),
    "fold": (
        "template <typename... T> int g(T... x) { return (x + ...); }",
        "v = g(1, 2);",
        "C++17 extension",
    ),
    "structured binding": (
        "struct S { int a, b; };",
        "S s = {1, 2}; auto [a, b] = s;",
        "C++17 extension",
    ),
    "inline variable": ("inline constant int x = 1;", "", "C++17 extension"),
    "two types in min": ("", "v = min(v, 1);", "no matching function"),
    "a name that Metal does not have": ("", "v = expf(v);", "undeclared identifier"),
    "half for float4": ("", "float4 a = float4(v); half4 b = a; v = float(b.x);", "half4"),
    "two operations on a line": (
        "",
        "v = simd_sum(v) + simd_max(v);",
        "two operations of a simdgroup on one line",
    ),
    "swizzle": ("", "float4 a = float4(v); v = a.yx.x;", "a swizzle"),
    "order of atomics": (
        "",
        "atomic_fetch_add_explicit(counts, 1u, memory_order_seq_cst);",
        "undeclared identifier",
    ),
    "matrix of 16": ("", "simdgroup_matrix<float, 16, 16> m;", "not 8x8"),
    "elements of a matrix": (
        "",
        "simdgroup_float8x8 m; v = m.thread_elements()[0];",
        "thread_elements",
    ),
    "syntax": ("", "v = (v + 1.0f;", "expected ')'"),
}


def write(tmp_path, before, inside):
    path = tmp_path / "snippet.metal"
    path.write_text(HEAD + before + "\n" + KERNEL.format(inside))
    return path


def test_the_frame_of_the_snippets_is_good(tmp_path):
    assert dialect.check(write(tmp_path, "", "")) == []


@pytest.mark.parametrize("rule", BAD)
def test_what_breaks_a_rule_is_found(tmp_path, rule):
    before, inside, message = BAD[rule]
    path = write(tmp_path, before, inside)
    errors = dialect.check(path)
    assert any(message in e for e in errors), errors
    # It says where: in the lines that were put in.
    text = path.read_text().split("\n")
    lines = [*range(3, 4 + before.count("\n")), text.index("  " + inside) + 1]
    assert any(f"{path}:{n}:" in e and message in e for e in errors for n in lines), errors


@pytest.mark.parametrize(
    "parameters, message",
    [
        ("device float3* x [[buffer(0)]]", "kernel f, x: a vector of three in a buffer"),
        (
            "device float* x [[buffer(0)]], device float* y [[buffer(2)]]",
            "kernel f: buffers 0, 2 are not 0, 1",
        ),
        ("device double* x [[buffer(0)]]", "double"),
        ("thread float* x [[buffer(0)]]", "write the address space first"),
    ],
)
def test_what_a_kernel_takes_is_checked(tmp_path, parameters, message):
    path = tmp_path / "snippet.metal"
    path.write_text(f"{HEAD}[[kernel]] void f({parameters}) {{}}\n")
    assert any(message in e for e in dialect.check(path))


def test_what_is_allowed(tmp_path):
    """Each of these once looked like a fault."""
    path = tmp_path / "snippet.metal"
    path.write_text(
        HEAD
        + """
struct Pair { float a, b; };
struct Args { uint n; Pair pair; };
constant uint kTable[2] = {1u, 2u};
enum { kSize = 4 };
template <typename P> inline float first(P p) { return p[0]; }
inline void put(thread float& x, thread const Pair& pair) { x = pair.a; }
inline float twice(float x) { return 2.0f * x; }
inline float4 twice(float4 v) { return float4{twice(v.x), twice(v.y), twice(v.z), twice(v.w)}; }
template <uint kN>
[[kernel]] void f(constant Args& args [[buffer(0)]], device const Pair* pairs [[buffer(1)]],
                  device float4* out [[buffer(2)]], uint i [[thread_index_in_simdgroup]]) {
  threadgroup float shared[kN > 2 ? kN : 1];
  shared[i] = 0.0f;
  simdgroup_barrier(mem_flags::mem_threadgroup);
  const Pair pair = pairs[i];
  float v = 0.0f;
  put(v, pair);
  device const float* values = (device const float*)pairs;
  const float sum = first(values) + first(shared) + first(kTable) + twice(v);
  out[i] = twice(float4{sum, float(half(v)), float(bfloat(v)), args.pair.a});
}
template [[host_name("f_4")]] [[kernel]] decltype(f<4>) f<4>;
template [[host_name("f_8")]] [[kernel]] decltype(f<8>) f<8>;
"""
    )
    assert dialect.check(path) == []
