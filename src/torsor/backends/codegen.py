"""LLVM IR to machine code in memory, through the disk cache."""

from __future__ import annotations

import functools
import importlib.util
import json
import mmap
import os
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from torsor.backends import cache, cpuid
from torsor.backends.elf import Image, NotLinkable, executable, link
from torsor.errors import ArgumentError


class Host(NamedTuple):
    """The machine that code is made for."""

    triple: str
    cpu: str
    features: str
    llvm: str = ""  # the version of LLVM that makes the code

    @property
    def x86(self) -> bool:
        return self.triple.startswith(("x86_64", "i686", "amd64"))

    def has(self, feature: str) -> bool:
        return f"+{feature}" in self.features.split(",")

    @property
    def fma(self) -> bool:
        """Whether one instruction multiplies and adds.  (Every 64-bit ARM processor has it.)"""
        return self.has("fma") if self.x86 else True

    def lanes(self, bits: int) -> int:
        """The count of numbers in one vector register."""
        if self.x86:
            width = 512 if self.has("avx512f") else 256 if self.has("avx2") else 128
        else:
            width = 128
        return width // bits


@functools.cache
def _llvm() -> Any:
    """llvmlite, loaded on first use, because its import takes longer than most programs run."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm


@functools.cache
def host() -> Host:
    """This machine according to LLVM.  The answer is cached per processor and llvmlite version; the import is slow."""
    identity = _seen_without_llvm()
    return Host(*json.loads(cache.remembered(identity, _ask_llvm) if identity else _ask_llvm()))


def _ask_llvm() -> str:
    llvm = _llvm()
    features = llvm.get_host_cpu_features().flatten()
    version = ".".join(map(str, llvm.llvm_version_info))
    return json.dumps([llvm.get_process_triple(), llvm.get_host_cpu_name(), features, version])


# the fields of /proc/cpuinfo that distinguish ARM processors; LLVM also reads them
_TELLING = ("CPU implementer", "CPU architecture", "CPU variant", "CPU part", "Features")


def _seen_without_llvm() -> str | None:
    """The processor and the installed llvmlite, or None if they cannot be determined."""
    try:
        processor = cpuid.processor() or _arm_processor()
        spec = importlib.util.find_spec("llvmlite")
        origin = spec.origin if spec else None
        installed = Path(origin or "").with_name("_version.py").stat()
    except (OSError, ValueError):
        return None
    return repr((Host._fields, processor, origin, installed.st_size, installed.st_mtime_ns)) if processor else None


def _arm_processor() -> list[str]:
    with open("/proc/cpuinfo") as file:
        first = file.read(8192).split("\n\n")[0]
    lines = (line.partition(":") for line in first.splitlines())
    return [text.strip() for name, _, text in lines if name.strip() in _TELLING]


def _target_machine(target: Host) -> Any:
    """A new target machine every time, because an execution engine owns the one it was made with."""
    llvm = _llvm()
    if target.triple != host().triple:  # another kind of machine: code for reading, not for running
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
    # only the level of code generation matters; IR passes cannot improve this code
    return llvm.Target.from_triple(target.triple).create_target_machine(
        cpu=target.cpu, features=target.features, opt=level(), reloc="pic", codemodel="small"
    )


def level() -> int:
    """The level of code generation, `TORSOR_OPTIMIZE`: 0 compiles three to four times faster than 3, the default.

    Every level computes the same bits: the code specifies which operations are fused, and no level may reorder them.
    """
    setting = os.environ.get("TORSOR_OPTIMIZE", "3")
    if setting not in ("0", "1", "2", "3"):
        raise ArgumentError(f"TORSOR_OPTIMIZE is {setting!r}, not a level from 0 to 3")
    return int(setting)


def _module(ir: str, target: Host) -> Any:
    llvm = _llvm()
    module = llvm.parse_assembly(ir)
    module.triple = target.triple
    module.data_layout = str(_target_machine(target).target_data)
    return module


def object_code(ir: str, target: Host) -> bytes:
    return _target_machine(target).emit_object(_module(ir, target))


def assembly(ir: str, target: Host | None = None) -> str:
    """The machine code as text."""
    target = target or host()
    return _target_machine(target).emit_assembly(_module(ir, target))


@dataclass(frozen=True, eq=False)
class Loaded:
    """A kernel in memory; the address is valid while the owner lives."""

    owner: Any
    address: int


def name_of(key: str) -> str:
    """The name of a kernel in the cache; it depends on the processor, LLVM, its level and torsor's sources."""
    return cache.name_of(key, (host(), level()), cache.writers())


def load(name: str, write_ir: Callable[[], str], words: Mapping[int, int] | None = None) -> Loaded:
    """The kernel of that name, from the cache or compiled now (`write_ir` is called only then).

    `words`: 64-bit constants in the code, and the value that replaces each in this process.
    """
    code = cache.read(name)
    if code is None:
        code = _linked(object_code(write_ir(), host()))
        cache.write(name, code)
    for word, now in (words or {}).items():
        old, new = (struct.pack("=Q", x) for x in (word, now))
        if code.count(old) != 1:
            raise NotLinkable(f"the constant {word:#x} is not once in the code")
        code = code.replace(old, new)
    return _load(code)


def _linked(code: bytes) -> bytes:
    """An image if we can link the code ourselves, else the object file, which LLVM links."""
    try:
        return link(code).to_bytes()
    except NotLinkable:
        return code


def _load(code: bytes) -> Loaded:
    if code[:1] == b"[":
        return Loaded(*Image.from_bytes(code).load())
    llvm = _llvm()
    if hasattr(mmap, "PROT_EXEC"):  # not on Windows
        executable(bytes(mmap.PAGESIZE), from_file=False)  # if this is refused, LLVM would abort the process
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _target_machine(host()))
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    return Loaded(engine, engine.get_function_address("kernel"))
