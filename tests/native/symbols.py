"""What a compiled library exports and needs, read from its file: ELF (Linux), Mach-O (macOS) and PE (Windows)."""

import struct
from dataclasses import dataclass, field


@dataclass
class Library:
    """The parts of a library's file that decide where it runs."""

    machine: str
    """Processor: x86_64 or aarch64."""
    exports: set[str] = field(default_factory=set)
    """Names that it defines for others."""
    needs: set[str] = field(default_factory=set)
    """Libraries that must be there."""
    versions: set[str] = field(default_factory=set)
    """Versions of symbols or of the system that it needs, such as GLIBC_2.17 or macOS 11.0."""


def read_library(content: bytes) -> Library:
    """Reads the file of a library for any of the three systems."""
    if content.startswith(b"\x7fELF"):
        return _read_elf(content)
    if content.startswith(b"\xcf\xfa\xed\xfe"):
        return _read_mach_o(content)
    assert content.startswith(b"MZ")
    return _read_pe(content)


def _text(content: bytes, at: int) -> str:
    return content[at : content.index(b"\0", at)].decode()


def _read_elf(content: bytes) -> Library:
    """Reads the sections of dynamic symbols, of needed libraries and of needed versions."""
    machine = {62: "x86_64", 183: "aarch64"}[struct.unpack_from("<H", content, 18)[0]]
    library = Library(machine)
    start, size, count = (*struct.unpack_from("<Q", content, 40), *struct.unpack_from("<HH", content, 58))
    sections = [struct.unpack_from("<IIQQQQIIQQ", content, start + size * index) for index in range(count)]
    for _, kind, _, _, offset, length, link, info, _, entry in sections:
        names = sections[link][4] if link < count else 0
        if kind == 11:  # dynamic symbols
            for at in range(offset, offset + length, entry):
                name, _, _, section, _, _ = struct.unpack_from("<IBBHQQ", content, at)
                if section:
                    library.exports.add(_text(content, names + name))
        elif kind == 6:  # dynamic entries, of which 1 is a needed library
            pairs = [struct.unpack_from("<QQ", content, at) for at in range(offset, offset + length, 16)]
            library.needs |= {_text(content, names + value) for tag, value in pairs if tag == 1}
        elif kind == 0x6FFFFFFE:  # needed versions
            library.versions |= _elf_versions(content, offset, names, info)
    return library


def _elf_versions(content: bytes, at: int, names: int, count: int) -> set[str]:
    versions = set()
    for _ in range(count):
        _, parts, _, first, following = struct.unpack_from("<HHIII", content, at)
        part = at + first
        for _ in range(parts):
            _, _, _, name, after = struct.unpack_from("<IHHII", content, part)
            versions.add(_text(content, names + name))
            part += after
        at += following
    return versions


def _read_mach_o(content: bytes) -> Library:
    """Reads load commands: the table of symbols, needed libraries and the oldest system."""
    assert struct.unpack_from("<I", content, 4)[0] == 0x0100000C
    library, at = Library("aarch64"), 32
    for _ in range(struct.unpack_from("<I", content, 16)[0]):
        command, size = struct.unpack_from("<II", content, at)
        if command == 2:  # table of symbols
            symbols, count, names = struct.unpack_from("<III", content, at + 8)
            for index in range(count):
                name, kind, _, _, _ = struct.unpack_from("<IBBHQ", content, symbols + 16 * index)
                if kind & 0x0F == 0x0F:  # defined here, and for others
                    library.exports.add(_text(content, names + name).removeprefix("_"))
        elif command == 0x0C:  # needed library
            library.needs.add(_text(content, at + struct.unpack_from("<I", content, at + 8)[0]))
        elif command == 0x32:  # oldest system
            oldest = struct.unpack_from("<I", content, at + 12)[0]
            library.versions.add(f"macOS {oldest >> 16}.{oldest >> 8 & 255}")
        at += size
    return library


def _read_pe(content: bytes) -> Library:
    """Reads the tables of exports and of imports."""
    header = struct.unpack_from("<I", content, 60)[0]
    machine, count, optional_size = (struct.unpack_from("<H", content, header + at)[0] for at in (4, 6, 20))
    assert machine == 0x8664
    library, optional = Library("x86_64"), header + 24
    assert struct.unpack_from("<H", content, optional)[0] == 0x20B  # 64 bits
    sections = [struct.unpack_from("<8sIIII", content, optional + optional_size + 40 * index) for index in range(count)]

    def offset(address: int) -> int:
        """Where something is in the file, from where it is in memory."""
        _, _, start, _, raw = next(s for s in sections if s[2] <= address < s[2] + max(s[1], s[3]))
        return address - int(start) + int(raw)

    exports, _, imports, _ = struct.unpack_from("<IIII", content, optional + 112)
    names, table = (struct.unpack_from("<I", content, offset(exports) + at)[0] for at in (24, 32))
    for index in range(names):
        library.exports.add(_text(content, offset(struct.unpack_from("<I", content, offset(table) + 4 * index)[0])))
    at = offset(imports)
    while (name := struct.unpack_from("<I", content, at + 12)[0]) != 0:
        library.needs.add(_text(content, offset(name)))
        at += 20
    return library
