"""Object code that runs at any address: a linker and loader for one simple kind of object file.

A kernel is one object file.  Its code addresses its constants and helpers relative to its own position, and it calls a
few functions of the C library.  `link` places the sections one after the other and fills in the relative distances.
For every function of the C library it adds a jump through an address that `Image.load` fills in.  The result runs at
any address: it can be stored on disk and starts without LLVM, whose import takes longer than most programs run.

    ELF, x86-64: System V ABI, AMD64 supplement, 4.4 (relocation)
"""

from __future__ import annotations

import ctypes
import functools
import json
import mmap
import os
import struct
from typing import Any, NamedTuple

import numpy as np

from torsor.errors import DeviceError

PAGE = 4096  # sections are placed relative to the beginning of a page
_PROGRAM, _SYMBOLS, _RELOCATIONS = 1, 2, 4  # kinds of section (SHT_PROGBITS, SHT_SYMTAB, SHT_RELA)
_IN_MEMORY, _WRITABLE = 2, 1  # flags of a section (SHF_ALLOC, SHF_WRITE)
_X86_64, _RELOCATABLE = 62, 1
_FORBIDDEN = (
    "this system lets no program run code that it has made, and torsor compiles its functions: run without that "
    "restriction (PR_SET_MDWE, SELinux's execmem, MemoryDenyWriteExecute= of systemd), take ts.export, or compute "
    "small models, state by state, by torsor.reference.evaluate"
)
_DISTANCES = (2, 4)  # R_X86_64_PC32, R_X86_64_PLT32: 32 bits, symbol + addend - place


class NotLinkable(Exception):
    """An object file of another kind, or with content that this linker does not support."""


class _Section(NamedTuple):
    name: int
    kind: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    alignment: int
    entry_size: int


class Image(NamedTuple):
    """Code that runs at the start of any page."""

    code: bytes
    entry: int  # where the kernel begins
    imports: dict[str, int]  # functions of the C library: where the code reads their addresses

    def to_bytes(self) -> bytes:
        return json.dumps([self.entry, self.imports]).encode() + b"\n" + self.code

    @classmethod
    def from_bytes(cls, content: bytes) -> Image:
        head, _, code = content.partition(b"\n")
        return cls(code, *json.loads(head))

    def load(self) -> tuple[Any, int]:
        """(the memory, to be kept while the code may run; the address of the kernel)"""
        code = bytearray(self.code)
        for name, place in self.imports.items():
            function = ctypes.cast(getattr(_c_library(), name), ctypes.c_void_p).value
            code[place : place + 8] = struct.pack("<Q", function)
        memory, address = executable(bytes(code))
        return memory, address + self.entry


def executable(code: bytes, from_file: bool = True) -> tuple[Any, int]:
    """(memory with this code, executable but not writable; its address)

    Some systems never make memory executable that was writable (PR_SET_MDWE, SELinux). Most of them can map a file.
    """
    memory = mmap.mmap(-1, len(code), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    memory[:] = code
    protection = mmap.PROT_READ | mmap.PROT_EXEC
    if _c_library().mprotect(ctypes.c_void_p(address), ctypes.c_size_t(len(memory)), protection) == 0:
        return memory, address
    try:
        with open(os.memfd_create("torsor") if from_file else os.devnull, "wb") as file:
            file.write(code)
            file.flush()
            memory = mmap.mmap(file.fileno(), len(code), flags=mmap.MAP_PRIVATE, prot=protection)
    except (OSError, AttributeError):  # only Linux has unnamed files
        raise DeviceError(_FORBIDDEN) from None
    return memory, np.frombuffer(memory, np.uint8).ctypes.data


@functools.cache
def _c_library() -> Any:
    return ctypes.CDLL(None)


def link(code: bytes, entry: str = "kernel") -> Image:
    """The image of an ELF object file for x86-64."""
    sections = _sections(code)
    image = bytearray()
    placed = _place(image, code, sections)
    symbols = next((_symbols(code, sections, s) for s in sections if s.kind == _SYMBOLS), [])
    imports: dict[str, int] = {}
    jumps = {name: _jump(image, imports, name) for name in dict.fromkeys(n for n, at, _ in symbols if n and not at)}
    # the place of every symbol: in its section, or the jump for an external symbol
    places = [placed[at] + value if at in placed else jumps.get(name) for name, at, value in symbols]
    for section in sections:
        if section.kind == _RELOCATIONS and section.info in placed:
            _relocate(image, placed[section.info], code[section.offset : section.offset + section.size], places)
    start = next((place for (name, at, _), place in zip(symbols, places) if name == entry and at), None)
    if start is None:
        raise NotLinkable(f"no function {entry}")
    _align(image, PAGE)
    return Image(bytes(image), start, imports)


def _sections(code: bytes) -> list[_Section]:
    if code[:6] != b"\x7fELF\x02\x01" or struct.unpack_from("<HH", code, 16) != (_RELOCATABLE, _X86_64):
        raise NotLinkable("not an object file for x86-64")
    table, size, count = struct.unpack_from("<Q", code, 40)[0], *struct.unpack_from("<HH", code, 58)
    return [_Section(*struct.unpack_from("<IIQQQQIIQQ", code, table + k * size)) for k in range(count)]


def _place(image: bytearray, code: bytes, sections: list[_Section]) -> dict[int, int]:
    """Append the code and the constants; returns the start of each section."""
    placed = {}
    for k, section in enumerate(sections):
        if section.flags & _IN_MEMORY and section.size:
            if section.kind != _PROGRAM or section.flags & _WRITABLE or section.alignment > PAGE:
                raise NotLinkable("a section that is neither code nor constants")
            _align(image, section.alignment)
            placed[k] = len(image)
            image += code[section.offset : section.offset + section.size]
    return placed


def _relocate(image: bytearray, start: int, table: bytes, places: list[int | None]) -> None:
    """Write the distances that a section at `start` has to symbols; the table has their entries (Elf64_Rela)."""
    for offset, info, addend in struct.iter_unpack("<QQq", table[: len(table) // 24 * 24]):
        here, target = start + offset, places[info >> 32]
        if info & 0xFFFFFFFF not in _DISTANCES or target is None:
            raise NotLinkable(f"relocation {info & 0xFFFFFFFF}")
        struct.pack_into("<i", image, here, target + addend - here)


def _align(image: bytearray, alignment: int) -> None:
    image += bytes(-len(image) % max(1, alignment))


def _symbols(code: bytes, sections: list[_Section], table: _Section) -> list[tuple[str, int, int]]:
    """(name, section, place in it) of every symbol; section 0: defined elsewhere."""
    names = sections[table.link].offset
    result = []
    for k in range(table.size // 24):
        name, _, _, section, value, _ = struct.unpack_from("<IBBHQQ", code, table.offset + 24 * k)
        end = code.index(b"\0", names + name)
        result.append((code[names + name : end].decode(), section, value))
    return result


def _jump(image: bytearray, imports: dict[str, int], name: str) -> int:
    """Append `jmp *place` and room for an address; returns the position of the jump."""
    _align(image, 8)
    at = len(image)
    image += b"\xff\x25" + struct.pack("<i", 2) + bytes(2) + bytes(8)  # the place follows at +8
    imports[name] = at + 8
    return at
