"""The two editions of the device library: the same names and parameters, all compiled, all tested."""

from __future__ import annotations

import re

import pytest

from mirage_nb.errors import CompileError
from mirage_nb.runtime.execution.compile import DEVICE_FOLDER, compile_cubin
from mirage_nb.runtime.execution.emulate import CpuModule
from mirage_nb.targets import TARGETS
from tests.device_cases import AMPERE, HOPPER
from tests.launches import KERNELS

HEAD = '#include "mirage_device.cuh"\nusing namespace mirage;\n'
FUNCTION = re.compile(
    r"(?:constexpr )?MIRAGE_DEVICE [\w:<>, ]*?[\w>&*] ?\b(\w+)(?:<[^<>()]*>)?\(((?:[^()]|\([^()]*\))*)\)"
)
SITE = re.compile(r"MIRAGE_SITE(?:_ALONE)?|,? ?int line\b")
CPU_ALONE = {"make_float2", "make_float4", "make_uint2", "make_uint4", "__syncthreads"}
"""What CUDA itself has."""
ARCHES = sorted({"sm_80", "sm_90", *(target.arch for target in TARGETS.values())})


def functions(folder: str) -> dict[str, set[tuple[str, ...]]]:
    """Public function -> its parameter lists, as types; what carries the line of a call is left out."""
    text = "\n".join(path.read_text() for path in sorted((DEVICE_FOLDER / folder).glob("*.cuh")))
    text = re.sub(r"//.*", "", text)
    text = re.sub(r"#define (?:.*\\\n)*.*", "", text)
    text = re.sub(r"namespace (?:detail|mirage::cpu) \{.*?\n\}  ", "", text, flags=re.DOTALL)
    found: dict[str, set[tuple[str, ...]]] = {}
    for name, parameters in FUNCTION.findall(text):
        bare = [p for p in re.split(r",(?![^<(]*[>)])", SITE.sub("", parameters)) if p.strip()]
        found.setdefault(name, set()).add(tuple(map(type_of, bare)))
    return found


def type_of(parameter: str) -> str:
    """`const uint32_t (&a)[4]` -> `const uint32_t(&)[4]`: without the name and the default value."""
    bare = re.sub(r"\s*=.*", "", parameter.strip())
    array = re.fullmatch(r"(.*?)\s*\(&\w*\)(\[.*\])", bare)
    if array:
        return f"{array[1]}(&){array[2]}"
    return re.sub(r"(?<=[\s*&])\w+$", "", bare).strip() if re.search(r"[\s*&]\w+$", bare) else bare


def test_the_editions_have_the_same_functions_with_the_same_parameters() -> None:
    cuda, cpu = functions("cuda"), functions("cpu")
    assert set(cpu) - set(cuda) == CPU_ALONE
    assert {name: cpu.get(name) for name in cuda} == cuda
    assert len(cuda) > 60  # the pattern still finds them


def test_every_function_stands_in_a_kernel_that_is_compared_with_numpy() -> None:
    kernels = "\n".join(path.read_text() for path in KERNELS.glob("*.cu"))
    used = set(re.findall(r"\w+", kernels))
    assert {case.file for case in (*AMPERE, *HOPPER)} == {path.name for path in KERNELS.glob("*.cu")}
    internal = {"operator"}
    assert {*functions("cuda"), *functions("common")} - used - internal == set()


def test_assembly_stays_in_the_cuda_edition() -> None:
    with_assembly = {
        str(path.relative_to(DEVICE_FOLDER).parent)
        for path in DEVICE_FOLDER.rglob("*.*")
        if re.search(r"\basm\b", path.read_text()) and path.name != "fiber.cc"
    }
    assert with_assembly == {"cuda"}


def test_the_entry_includes_every_header_of_both_editions() -> None:
    text = (DEVICE_FOLDER / "mirage_device.cuh").read_text()
    for edition in ("cuda", "cpu"):
        included = re.findall(rf'#include "((?:{edition}|common)/\w+\.cuh)"', text)
        headers = {f"{p.parent.name}/{p.name}" for f in (edition, "common") for p in (DEVICE_FOLDER / f).glob("*.cuh")}
        assert headers <= set(included)


@pytest.mark.parametrize("arch", ARCHES)
def test_the_library_compiles_for_every_target(arch: str) -> None:
    cubin = compile_cubin(f'{HEAD}extern "C" __global__ void k(float* y) {{ y[0] = 1; }}', arch)
    assert cubin.data.startswith(b"\x7fELF") and "warning" not in cubin.log


BUILDS = {(c.file, c.options, a): c for a in ("sm_80", "sm_90a") for c in AMPERE} | {
    (c.file, c.options, "sm_90a"): c for c in HOPPER
}


@pytest.mark.parametrize(("file", "options", "arch"), BUILDS)
def test_hand_written_kernels_compile_without_spills(file: str, options: tuple[str, ...], arch: str) -> None:
    cubin = compile_cubin(BUILDS[file, options, arch].source, arch, options)
    assert "warning" not in cubin.log
    for name, usage in cubin.usage.items():
        assert usage.spill_store_bytes == usage.spill_load_bytes == 0, name
        # Sine and cosine, and nothing else, use the stack: large arguments are reduced there.
        assert usage.stack_bytes == 0 or name == "waves", name
        assert 0 < usage.registers <= 168, name


def test_newer_functions_are_unknown_to_older_targets() -> None:
    tma = "mbarrier_wait(static_cast<uint64_t*>(nullptr), 0);"
    wgmma = "wgmma_commit();"
    for arch, call, name in (("sm_89", tma, "mbarrier_wait"), ("sm_90", wgmma, "wgmma_commit")):
        with pytest.raises(CompileError, match=f'identifier "{name}" is undefined'):
            compile_cubin(f'{HEAD}extern "C" __global__ void k() {{ {call} }}', arch)


def test_the_cpu_edition_compiles_without_warnings() -> None:
    flags = ("-Wall", "-Wextra", "-Wno-unused-parameter", "-Wno-unknown-pragmas", "-Werror")
    module = CpuModule(f'{HEAD}extern "C" __global__ void k(float* y) {{ y[0] = 1; }}', flags)
    assert list(module.kernels) == ["k"]
