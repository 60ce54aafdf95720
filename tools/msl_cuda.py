# SPDX-License-Identifier: MIT
"""The target "cuda" of msl.py."""

import pathlib
import re

from msl import Array, Constant, Cpu, Instance, Table, flatten

# Threads a threadgroup has at most, by kernel, and how many of them a multiprocessor is to hold.
CUDA_BOUNDS = {
    "attention": "128, 4",
    "attention_part": "128, 4",
    "attn_prepare": "32",
    "block_scores": "128",
    "delta_chunk": "128",
    "delta_prepare": "128",
    "delta_step": "128",
    "expert_down_mm": "128",
    "expert_gate_up_mm": "128",
    "index_prepare": "32",
    "logits_top": "1024",
    "matmat": "128",
    "mix_up_read": "128",
    "route": "32",
}
CUDA_BOUNDS_OF_OTHERS = "512"
# Weights that a kernel reads whatever those before it do: the buffer, and how many bytes of it.
CUDA_WEIGHTS = {
    "matvec": ("weights", "ulong(args.rows) * args.row_bytes"),
    "matvec_tg": ("weights", "ulong(args.rows) * args.row_bytes"),
    "mix_up_read": ("weights", "ulong(args.streams) * args.width * args.row_bytes"),
}
# How a parameter of the kernel is made of what CUDA has.
CUDA_POSITIONS = {
    "thread_position_in_grid": "blockIdx.{0} * blockDim.{0} + threadIdx.{0}",
    "thread_position_in_threadgroup": "threadIdx.{0}",
    "thread_index_in_threadgroup": "threadIdx.x",
    "threadgroup_position_in_grid": "blockIdx.{0}",
    "threadgroups_per_grid": "gridDim.{0}",
    "threads_per_grid": "gridDim.{0} * blockDim.{0}",
    "threads_per_threadgroup": "blockDim.{0}",
    "threads_per_simdgroup": "32u",
    "thread_index_in_simdgroup": "threadIdx.x % 32u",
    "simdgroup_index_in_threadgroup": "threadIdx.x / 32u",
    "simdgroups_per_threadgroup": "blockDim.x / 32u",
}


class Cuda:
    """For NVRTC. Address spaces go; kernels become functions that an entry of each name calls.

    An entry is made where MSL_MAKE_<name> is defined. The buffers of the kernel are its parameters, the
    argument struct by value; the last one says when it waits for the kernel before it.
    """

    SHIM = pathlib.Path(__file__).resolve().parent.parent / "csrc/backends/gpu/cuda/msl_cuda.h"

    def text(self, text):
        text = text.replace("#pragma clang loop unroll(full)", "#pragma unroll")
        return Cpu.text(self, text)

    def replace(self, module, what, text):
        if isinstance(what, Constant):
            if what.value:
                return f"constexpr {what.type} {what.name} = {what.value};"
            return (
                f"constexpr bool {what.name}_is_set = constant_is_set({what.index}); "
                f"constexpr {what.type} {what.name} = {what.type}(constant_value({what.index}));"
            )
        if isinstance(what, Table):
            return "static __device__ const "
        if isinstance(what, Instance):
            return ""
        if isinstance(what, Array):
            return f"__shared__ {self.text(what.type)} {what.name}{self.text(what.extents)};"
        parameters = ", ".join(f"{p.type} {p.name}" for p in what.parameters)
        return f"static __forceinline__ void {what.name}_body({self.text(parameters)})"

    def translate(self, module):
        entries = [self.entry(instance) for instance in module.instances]
        out = [
            f"// Made by tools/msl.py from {module.shown}; do not edit.",
            flatten(self.SHIM),
            "namespace metal {",
            module.render(self),
            '#line 1 "entries"',
            *[self.define(kernel) for kernel in module.kernels.values()],
            *entries,
            "}  // namespace metal",
        ]
        return "\n".join(out) + "\n"

    def define(self, kernel):
        """The entry of a kernel's instances: MSL_ENTRY_<kernel>(name, function)."""
        parameters, arguments = [], []
        for p in kernel.parameters:
            kind = self.text(p.type).strip()
            if p.attribute != "buffer":
                xyz = ", ".join(CUDA_POSITIONS[p.attribute].format(axis) for axis in "xyz")
                arguments.append(f"FromPosition<{kind}>::get({xyz})")
                continue
            if kind.endswith("&"):
                kind = f"const __grid_constant__ {kind[:-1].removeprefix('const ')}"
            parameters.append(f"{kind} {p.name}")
            arguments.append(p.name)
        bounds = kernel.max_threads or CUDA_BOUNDS.get(kernel.name, CUDA_BOUNDS_OF_OTHERS)
        known = CUDA_WEIGHTS.get(kernel.name)
        prefetch = f"if (msl_waits) prefetch_share({', '.join(known)}); " if known else ""
        return (
            f"#define MSL_ENTRY_{kernel.name}(name, ...) "
            f'extern "C" __global__ void __launch_bounds__({bounds}) '
            f"name({', '.join(parameters)}, uint msl_waits) {{ "
            f"{prefetch}begin_kernel(msl_waits); __VA_ARGS__({', '.join(arguments)}); end_kernel(msl_waits); }}"
        )

    def entry(self, instance):
        name = instance.kernel.name
        function = re.sub(rf"^{name}\b", f"{name}_body", instance.function)
        return (
            f"#ifdef MSL_MAKE_{instance.name}\n"
            f"MSL_ENTRY_{name}({instance.name}, {function})\n#endif"
        )
