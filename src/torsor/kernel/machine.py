"""LLVM IR to machine code in memory, and the cache of object code on disk."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple


class Host(NamedTuple):
    """The machine code is made for."""

    triple: str
    cpu: str
    features: str

    @property
    def x86(self) -> bool:
        return self.triple.startswith(("x86_64", "i686", "amd64"))

    def has(self, feature: str) -> bool:
        return f"+{feature}" in self.features.split(",")

    @property
    def fma(self) -> bool:
        """Does one instruction multiply and add?  (Every 64-bit ARM has it.)"""
        return self.has("fma") if self.x86 else True

    def lanes(self, bits: int) -> int:
        """How many numbers one vector register holds."""
        if self.x86:
            width = 512 if self.has("avx512f") else 256 if self.has("avx2") else 128
        else:
            width = 128
        return width // bits


@functools.cache
def _llvm() -> Any:
    """llvmlite, loaded when first needed: importing it takes longer than most programs run."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm


@functools.cache
def host() -> Host:
    llvm = _llvm()
    features = llvm.get_host_cpu_features()
    return Host(llvm.get_process_triple(), llvm.get_host_cpu_name(), features.flatten())


def _target_machine(target: Host) -> Any:
    """A new one every time: an execution engine owns the one it was made with."""
    llvm = _llvm()
    if target.triple != host().triple:  # another kind of machine: code to look at, not to run
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
    # code generation at level 3 is what matters; IR passes find nothing to do in this code
    return llvm.Target.from_triple(target.triple).create_target_machine(
        cpu=target.cpu, features=target.features, opt=3, reloc="pic", codemodel="small"
    )


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


class Loaded(NamedTuple):
    """A kernel in memory; the address is good while the engine lives."""

    engine: Any
    address: int


def load(key: str, write_ir: Callable[[], str]) -> Loaded:
    """The kernel of that key, from the cache or compiled now (`write_ir` is called only then)."""
    llvm = _llvm()
    name = hashlib.blake2b(repr((key, host(), llvm.llvm_version_info)).encode(), digest_size=20).hexdigest()
    code = _read(name)
    if code is None:
        code = object_code(write_ir(), host())
        _write(name, code)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _target_machine(host()))
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    return Loaded(engine, engine.get_function_address("kernel"))


def remembered(key: str, find: Callable[[], str]) -> str:
    """A short text that takes a while to find, kept in the cache beside the kernels."""
    name = hashlib.blake2b(repr(("text", key)).encode(), digest_size=20).hexdigest()
    kept = _read(name)
    if kept is None:
        kept = find().encode()
        _write(name, kept)
    return kept.decode()


# The cache: one file a kernel, a checksum before the code ------------------------------------------------------


def cache_folder() -> Path | None:
    """Where object code is kept, or None with TORSOR_CACHE=off.  TORSOR_CACHE may also name a folder."""
    setting = os.environ.get("TORSOR_CACHE", "")
    if setting.lower() in ("off", "0", "no"):
        return None
    if setting:
        return Path(setting)
    if sys.platform == "darwin":
        home = Path("~/Library/Caches")
    elif sys.platform == "win32":
        home = Path(os.environ.get("LOCALAPPDATA", "~/AppData/Local"))
    else:
        home = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    try:
        return home.expanduser() / "torsor"
    except RuntimeError:  # no home
        return None


def _read(name: str) -> bytes | None:
    folder = cache_folder()
    if folder is None:
        return None
    try:
        content = (folder / name).read_bytes()
    except OSError:
        return None
    checksum, code = content[:20], content[20:]
    return code if code and hashlib.sha1(code, usedforsecurity=False).digest() == checksum else None


def _write(name: str, code: bytes) -> None:
    """Whole or not at all: written aside and renamed, so that no reader ever sees half a file."""
    folder = cache_folder()
    if folder is None:
        return
    with contextlib.suppress(OSError):  # a cache that cannot be written is a slower start, nothing more
        folder.mkdir(parents=True, exist_ok=True)
        aside = folder / f"{name}.{os.getpid()}.{threading.get_ident()}"
        try:
            aside.write_bytes(hashlib.sha1(code, usedforsecurity=False).digest() + code)
            os.replace(aside, folder / name)
        finally:
            aside.unlink(missing_ok=True)
