# SPDX-License-Identifier: MIT
"""tests/simt itself: it computes what Metal says, and finds every kind of fault where one is."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import simt
from faults import cases

HERE = Path(__file__).resolve().parent
ORDERS = simt.ORDERS


@pytest.fixture(scope="module")
def operations():
    return simt.Device(HERE / "operations.metal", sanitize="")


@pytest.fixture(scope="module")
def faulty():
    return cases.load(sanitize="")


def device_of(tmp_path, source, name="kernels.metal"):
    path = tmp_path / name
    path.write_text("#include <metal_stdlib>\nusing namespace metal;\n" + source)
    return simt.Device(path, sanitize="")


# Known answers.


def test_positions(operations):
    groups, threads = (2, 3, 2), (5, 4, 3)
    n_group, n_thread = 12, 60
    out = np.zeros((n_group, n_thread, 19), np.uint32)
    operations.run("positions", None, [out], groups=groups, threads=threads, order="random")
    z, y, x = np.unravel_index(np.arange(n_group), groups[::-1])
    group = np.stack([x, y, z], axis=1)
    z, y, x = np.unravel_index(np.arange(n_thread), threads[::-1])
    thread = np.stack([x, y, z], axis=1)
    index = np.arange(n_thread)
    assert np.array_equal(out[..., 0:3], group[:, None] * threads + thread)
    assert np.array_equal(out[..., 3:6], np.broadcast_to(thread, (n_group, n_thread, 3)))
    assert np.array_equal(out[..., 6:9], np.broadcast_to(group[:, None], (n_group, n_thread, 3)))
    assert (out[..., 9:15] == [*groups, *threads]).all()
    assert (
        (out[..., 15] == index).all()
        and (out[..., 16] == index % 32).all()
        and (out[..., 17] == index // 32).all()
    )
    assert (out[..., 18] == 2).all()


@pytest.mark.parametrize("n", [32, 19])
@pytest.mark.parametrize("order", ORDERS)
def test_simd_operations(operations, n, order):
    rng = np.random.default_rng(n)
    x = rng.integers(0, 100, n).astype(np.int32)
    y = rng.standard_normal(n).astype(np.float32)
    ints, floats = np.zeros((24, n), np.int32), np.zeros((5, n), np.float32)
    operations.run(
        "simd_operations", None, [x, y, ints, floats], groups=(1,), threads=(n,), order=order
    )
    lane = np.arange(n)
    for row, value in {
        0: x.sum(),
        1: np.prod(x % 3),
        2: x.min(),
        3: x.max(),
        4: np.bitwise_and.reduce(x),
        5: np.bitwise_or.reduce(x),
        6: np.bitwise_xor.reduce(x),
        7: (x > 90).any(),
        8: (x > 90).all(),
        9: True,
        10: np.array([(int(v) << i) for i, v in enumerate(x > 50)])
        .sum()
        .astype(np.uint32)
        .view(np.int32),
        11: x[lane * 5 % n],
        17: x[9],
        18: x[0],
        19: np.cumsum(x),
        20: np.cumsum(x) - x,
        21: np.cumprod(x % 2 + 1, dtype=np.int32),
        22: np.cumprod(np.r_[1, x[:-1] % 2 + 1], dtype=np.int32),
        23: lane == 0,
    }.items():
        assert (ints[row] == value).all(), row
    # Lanes that do not exist are all ones.
    padded = np.r_[x, np.full(96 - n, -1, np.int32)]
    assert (ints[12] == padded[lane ^ 1]).all()
    assert (ints[13] == np.where(lane + 3 < 32, padded[(lane + 3) % 96], -1)).all()
    assert (ints[14][3:] == x[:-3]).all() and (ints[14][:3] == -1).all()
    assert (ints[15] == padded[(lane + 7) % 32]).all() and (
        ints[16] == padded[(lane - 7) % 32]
    ).all()
    want = np.stack(
        [
            np.full(n, y.sum()),
            np.full(n, y.max()),
            np.cumsum(y),
            np.full(n, y.sum() + 3 * n),
            np.full(n, lane.sum()),
        ]
    )
    np.testing.assert_allclose(floats, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["float", "half", "bfloat"])
def test_matrices(operations, kind):
    rng = np.random.default_rng(7)
    # Small integers: every product and sum is exact in all three types.
    a = rng.integers(-4, 5, (12, 20)).astype(np.float32)
    b = rng.integers(-4, 5, (8, 16)).astype(np.float32)
    c = rng.integers(-4, 5, (8, 8)).astype(np.float32)
    part, want = a[2:10, 3:19], c + a[2:10, 3:19] @ b.T
    transposed = np.zeros((8, 8), np.float32)
    stored = [a, b]
    if kind == "half":
        stored = [a.astype(np.float16), b.astype(np.float16)]
    if kind == "bfloat":
        stored = [(v.view(np.uint32) >> 16).astype(np.uint16) for v in stored]
    operations.run(f"matrices_{kind}", None, [*stored, c, transposed], groups=(1,), threads=(32,))
    assert np.array_equal(c, want)
    assert np.array_equal(transposed, (part[:, 8:] @ b[:, 8:].T).T)


@pytest.mark.parametrize("workers", [1, 3])
def test_atomics(operations, workers):
    n = 96 * 7
    sums = np.array([5, 2000, 0, 0xFFFFFFFF, 0, 1], np.uint32)
    extremes, place, order = np.zeros(2, np.int32), np.zeros(1, np.uint32), np.zeros(n, np.uint32)
    buffers = [sums, extremes, place, order]
    operations.run(
        "atomics", None, buffers, groups=(7,), threads=(96,), order="random", workers=workers
    )
    xor = int(np.bitwise_xor.reduce(np.arange(n)))
    assert sums.tolist() == [5 + n * (n - 1) // 2, 2000 - n, 0xFFFFFFFF, 0xFFFFFF00, xor, 1 + 2 * n]
    assert extremes.tolist() == [1 - n, n - 1] and place[0] == n
    assert np.array_equal(np.sort(order), np.arange(n))
    assert not np.array_equal(order, np.arange(n)), "the random order is none"


def test_orders_are_what_they_are_called(operations):
    n = 96 * 2
    seen = {}
    for order in ORDERS:
        out = np.zeros(n, np.uint32)
        buffers = [np.zeros(6, np.uint32), np.zeros(2, np.int32), np.zeros(1, np.uint32), out]
        operations.run("atomics", None, buffers, groups=(2,), threads=(96,), order=order, seed=5)
        seen[order] = out
    assert np.array_equal(seen["forward"], np.arange(n))
    assert np.array_equal(seen["reverse"], np.arange(n)[::-1])


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("optional", [None, 9])
def test_function_constants(operations, with_bias, optional):
    out = np.zeros(32, np.float32)
    bias = np.arange(32, dtype=np.float32)
    constants = {0: with_bias, 1: 5, 2: 1.5}
    if optional is not None:
        constants[3] = optional
    buffers = [out, bias if with_bias else None]
    operations.run("constants", None, buffers, groups=(1,), threads=(32,), constants=constants)
    want = (
        np.where(np.arange(32) < 10, np.resize([4.5, 1.5, 6, 1.5], 32), 0)
        + with_bias * bias
        + (optional or 0)
    )
    assert np.array_equal(out, want)


def test_threadgroup_argument_and_packed_vectors(operations):
    x = np.arange(2 * 40 * 3, dtype=np.float32).reshape(2, 40, 3)
    out = np.zeros_like(x)
    run = operations.run
    run(
        "reverse_row",
        None,
        [x, out],
        groups=(2,),
        threads=(40,),
        threadgroup_bytes=[40 * 16],
        order="random",
    )
    assert np.array_equal(out, x[:, ::-1])


def test_arithmetic(operations):
    a, b = np.float32(0.7), np.float32(2.3)
    floats, words = np.zeros(28, np.float32), np.zeros(20, np.uint32)
    operations.run("arithmetic", None, [np.array([a, b]), floats, words], groups=(1,), threads=(1,))
    fa, fb = float(a), float(b)
    half = float(np.float16(a)) * 2
    bfloat = np.array(
        [(a.view(np.uint32) + 0x7FFF + (a.view(np.uint32) >> 16 & 1)) & 0xFFFF0000], np.uint32
    )
    want = [
        np.exp(fa),
        np.log(fb),
        2**fa,
        fb**0.5,
        fb**-0.5,
        np.tanh(fa),
        fb**fa,
        fa * fb + 1,
        -1,
        2,
        1,
        fb,
        half,
    ]
    want += [
        bfloat.view(np.float32)[0],
        1.0,
        fa * 4 + fb * 6,
        2 * fa + 1,
        5,
        100 + 2 * fb + 1,
        1.5,
        1.0,
        fa * 8,
        0,
    ]
    want += [fa + 3, np.exp(fb), -fb, np.fmod(fb, fa), 1]
    np.testing.assert_allclose(floats, want, rtol=1e-6)
    words_want = [
        8,
        31,
        3,
        0xBC,
        0xFFFFFFFF,
        0xF0,
        0x18,
        3,
        a.view(np.uint32),
        0x20001,
        0x3C00,
        0xC000,
    ]
    words_want += [16 << 16 | 12, 16 << 16 | 4, 64, 0xFFFFFFFF, 44, 7, 310, 8]
    assert words.tolist() == words_want


# Faults.


@pytest.mark.parametrize("kernel", cases.KERNELS)
def test_sound_kernels_raise_no_alarm(faulty, kernel):
    results = {
        cases.attempt(faulty, kernel, 0, order, workers=w) for order in ORDERS for w in (1, 2)
    }
    assert len(results) == 1 and {r[0] for r in results} == {"right"}


PLAIN = [f for f in cases.FAULTS if f.plain]


@pytest.mark.parametrize("fault", PLAIN, ids=[f.name for f in PLAIN])
def test_fault_is_found_without_a_sanitizer(faulty, fault, capsys):
    results = [cases.attempt(faulty, fault.kernel, fault.number, order)[0] for order in ORDERS]
    if fault.plain == cases.WRONG:
        assert cases.WRONG in results
    else:
        for result in results:
            assert re.search(fault.plain, result), result


def sanitized(sanitize):
    """What the sanitizer said of every case: name -> text."""
    environment = simt.sanitized_environment(sanitize)
    if environment is None:
        pytest.skip(f"{simt.compiler()} has no library for -fsanitize={sanitize}")
    command = [sys.executable, str(HERE / "faults" / "cases.py")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    parts = re.split(r"^begin (.*)\n", done.stderr, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.mark.parametrize("sanitize", ["address,undefined", "thread"])
def test_faults_are_found_by_the_sanitizer(sanitize, capsys):
    said = sanitized(sanitize)
    for kernel in cases.KERNELS:
        for order in ORDERS:
            assert said[f"{kernel}-0 {order}"] == "result right\n"
    found = []
    for fault in cases.FAULTS:
        pattern = fault.thread if sanitize == "thread" else fault.address
        if pattern:
            assert re.search(pattern, said[fault.name], re.DOTALL), (fault, said[fault.name])
            found.append(fault)
        elif "SUMMARY" in said[fault.name]:
            # What one looks for in the one way may end the process in the other.
            assert fault.number == 3 and fault.kernel == "count_values", said[fault.name]
    with capsys.disabled():
        print(f"\nfound with -fsanitize={sanitize}:")
        for fault in found:
            print(f"  {fault.name}: {fault.what}")


def test_every_fault_is_found_somehow():
    assert all(f.plain or f.address or f.thread for f in cases.FAULTS)


def test_threadgroup_memory_has_a_limit(faulty):
    out = np.zeros(32, np.float32)
    faulty.run("large_8192", None, [out], groups=(1,), threads=(32,))
    assert np.array_equal(out, np.arange(32)[::-1])
    with pytest.raises(
        simt.SimtError, match=r"faults\.metal:\d+: 32772 bytes of threadgroup memory with words"
    ):
        faulty.run("large_8193", None, [out], groups=(1,), threads=(32,))


def test_poison_differs_between_orders(tmp_path):
    """What NaN does not show shows as a difference: here the fault drops out of a maximum."""
    device = device_of(
        tmp_path,
        """
[[kernel]] void f(device float* out [[buffer(0)]], uint i [[thread_index_in_simdgroup]]) {
  threadgroup float words[64];
  words[i] = float(i);
  simdgroup_barrier(mem_flags::mem_threadgroup);
  out[i] = fmax(words[i + 32], words[i]);
}
""",
    )
    results = []
    for order in ORDERS:
        out = np.zeros(32, np.float32)
        device.run("f", None, [out], groups=(1,), threads=(32,), order=order)
        results.append(out.tobytes())
    assert len(set(results)) == 3


def test_a_stack_that_overflows_is_an_error(tmp_path):
    device = device_of(
        tmp_path,
        """
[[kernel]] void f(device float* out [[buffer(0)]], constant uint& n [[buffer(1)]]) {
  float words[100000];
  for (uint i = 0; i < n; ++i) words[i * 7919u % 100000u] = float(i);
  for (uint i = 0; i < n; ++i) out[0] += words[i];
}
""",
    )
    with pytest.raises(simt.SimtError, match="f: (stack overflow|access to memory)"):
        device.run(
            "f",
            None,
            [np.zeros(1, np.float32), np.array([100000], np.uint32)],
            groups=(1,),
            threads=(1,),
        )


@pytest.mark.skipif(
    sys.platform != "linux" or not shutil.which("addr2line"),
    reason="places of faults want Linux and addr2line",
)
def test_a_bad_access_is_placed(faulty):
    result = cases.attempt(faulty, "row_squares", 5, "forward")[0]
    line = 1 + (HERE / "faults" / "faults.metal").read_text().split("\n").index(
        "      chunk[i + (fault == 7 && i == kChunk - 1 ? 1 : 0)] = from[begin + i];"
    )
    assert f"at tests/gpu/faults/faults.metal:{line}, in threadgroup (4, 0, 0)" in result


def test_the_process_lives_on_after_an_error(faulty):
    for _ in range(3):
        assert "diverge" in cases.attempt(faulty, "row_squares", 9, "random")[0]
        assert cases.attempt(faulty, "row_squares", 0, "random")[0] == "right"
        assert "not the kernel's" in cases.attempt(faulty, "row_squares", 5, "forward")[0]


# What the host does wrong.

SIZES = {"groups": (5,), "threads": (128,)}
ARGS = np.array([5, 700], np.uint32)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"threads": (1025,)}, "threadgroup of 1025 threads, want 1 to 1024"),
        ({"threads": (0,)}, "threadgroup of 0 threads"),
        ({"constants": {}}, r"function constant fault \(0\) has no value"),
        ({"buffers": ["x", None]}, r"buffer out \(2\) is not bound"),
        ({"buffers": ["x"]}, r"buffer out \(2\) is not bound"),
        ({"args": ARGS[:1]}, r"buffer args \(0\): got 4 bytes, its type has 8"),
        ({"name": "row_squares_"}, "no kernel row_squares_; there are chain, count_values"),
        ({"buffers": ["x", "out of x"]}, "buffer 2 overlaps another one"),
    ],
)
def test_wrong_calls_are_refused(faulty, change, message):
    x, out = np.zeros((5, 700), np.float32), np.zeros(5, np.float32)
    arrays = {"x": x, "out": out, "out of x": x[1], None: None}
    call = {"constants": {0: 0}, **SIZES, **change}
    buffers = [arrays[name] for name in call.pop("buffers", ["x", "out"])]
    with pytest.raises(simt.SimtError, match=message):
        faulty.run(call.pop("name", "row_squares"), call.pop("args", ARGS), buffers, **call)


def test_arrays_that_are_no_rows_are_refused(faulty):
    x = np.zeros((700, 5), np.float32).T
    with pytest.raises(TypeError, match="buffer 1 of row_squares: want a C-contiguous"):
        faulty.run("row_squares", ARGS, [x, np.zeros(5, np.float32)], constants={0: 0}, **SIZES)


def test_a_wrong_constant_buffer_is_not_written(faulty):
    """Only what a kernel may write is copied back, and an error leaves all as it was."""
    x, out = np.ones((5, 700), np.float32), np.full(5, 7, np.float32)
    with pytest.raises(simt.SimtError):
        faulty.run("row_squares", ARGS, [x, out], constants={0: 9}, **SIZES)
    assert (out == 7).all() and (x == 1).all()


# The translator.


@pytest.mark.parametrize(
    "source, message",
    [
        (
            "kernel void f(device float* x) {}",
            "bad.metal:3: kernel f: parameter without one attribute: device float",
        ),
        ("kernel void f(device float* x [[buffer]]) {}", "kernel f, x: buffer without an index"),
        ("kernel void f(float* x [[buffer(0)]]) {}", "kernel f, x: write the address space first"),
        (
            "kernel void f(device float x [[buffer(0)]]) {}",
            "f, x: a buffer is a pointer or a reference",
        ),
        ("kernel void f(uint x [[sample_id]]) {}", r"f, x: \[\[sample_id\]\] is not known here"),
        ("kernel void f(uint x [[threadgroup(0)]]) {}", "f, x: want a threadgroup pointer"),
        ("kernel void f();", "kernel f: no body follows"),
        (
            "\n\nkernel void f() { threadgroup float x[2] = {}; }",
            "bad.metal:5: a threadgroup variable is one name",
        ),
        ("kernel void f() { threadgroup float x[2], y[2]; }", "a threadgroup variable is one name"),
        ("kernel void f() {}\nkernel void f() {}", "bad.metal:4: kernel f is defined twice"),
        (
            'template [[host_name("g")]] [[kernel]] decltype(f<1>) f<1>;',
            "g: there is no kernel f<1>",
        ),
        (
            """template <int N> kernel void f() {}
template [[host_name("g")]] [[kernel]] decltype(f<1>) f<2>;""",
            r"bad.metal:4: g: decltype\(f<1>\) declares f<2>",
        ),
        ('#include "nowhere.h"', "bad.metal:3: cannot find nowhere.h"),
        ("kernel void f() { g(; }", r"bad.metal:3: '\(' is never closed"),
    ],
)
def test_the_translator_says_what_and_where(tmp_path, source, message):
    with pytest.raises(simt.SimtError, match=message):
        device_of(tmp_path, source, "bad.metal")


def test_the_compiler_speaks_of_the_metal_file(tmp_path):
    (tmp_path / "helper.h").write_text("#pragma once\ninline float broken() { return missing; }\n")
    with pytest.raises(simt.SimtError, match=r"helper\.h:2:\d+: error: .*missing"):
        device_of(
            tmp_path, '#include "helper.h"\n#include "helper.h"\nkernel void f() { broken(); }'
        )
    (tmp_path / "helper.h").write_text("#pragma once\ninline float broken() { return 1.0f; }\n")
    with pytest.raises(simt.SimtError, match=r"kernels\.metal:5:\d+: error: .*missing"):
        device_of(
            tmp_path, '#include "helper.h"\n#include "helper.h"\nkernel void f() { missing(); }'
        )


def test_a_flat_file_says_the_same(tmp_path):
    """For Metal's compiler only includes are resolved, each once; comments stay."""
    (tmp_path / "one.h").write_text("#pragma once\nconstant int one = 1;  // one\n")
    (tmp_path / "two.h").write_text('#include "one.h"\nconstant int two = one + one;\n')
    path = tmp_path / "k.metal"
    path.write_text(
        '#include <metal_stdlib>\n#include "two.h"\n#include "one.h"\nkernel void f() {}\n'
    )
    text = simt.msl.translate("metal", path)
    lines = [line for line in text.split("\n") if line and not line.startswith("#line")]
    assert lines == [
        "#include <metal_stdlib>",
        "constant int one = 1;  // one",
        "constant int two = one + one;",
        "kernel void f() {}",
    ]


# The project's kernels under the sanitizers.

# Kernels that stand for the rest: those without a weight type, and of the others a plain type, one
# of the K family, one with a table, and one whose blocks stand at odd addresses.
KERNELS = "_(F16|Q4_K|IQ3_S|MXFP4)(_|$)|^(?!(embed|matvec|matmat|expert_gate|expert_down|mix_up)_)"
# A race that is meant: the test's own kernel changes what it has read.
RACY = "not read_once"
FILES = sorted(
    str(p)
    for p in HERE.glob("test_*.py")
    if re.search(r"^from parity_on_simt import", p.read_text(), re.MULTILINE)
)


@pytest.mark.parametrize("sanitize", ["address,undefined", "thread"])
def test_kernels_under_the_sanitizer(sanitize):
    """A sample of the other tests; all of them: see simt.py."""
    environment = simt.sanitized_environment(sanitize)
    if environment is None:
        pytest.skip(f"{simt.compiler()} has no library for -fsanitize={sanitize}")
    environment.update(ESKER_SIMT_KERNELS=KERNELS, ESKER_SIMT_SAMPLE="12")
    command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", "-k", RACY, *FILES]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, cwd=HERE.parents[1], check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-5000:]
    passed = re.findall(r"(test_\w+\.py)::.* PASSED", done.stdout)
    assert all(passed.count(Path(file).name) >= 5 for file in FILES), done.stdout[-3000:]
