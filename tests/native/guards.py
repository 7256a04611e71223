"""Memory beside pages that must not be touched. It imports nothing but the standard library."""

import ctypes
import mmap

PAGE = mmap.PAGESIZE
NO_ACCESS = 0
libc = ctypes.CDLL(None, use_errno=True)


class Guarded:
    """A copy of some memory beside a page without access."""

    def __init__(self, content: bytes, *, before: bool) -> None:
        size = -(-len(content) // PAGE) * PAGE
        self._pages = mmap.mmap(-1, size + 2 * PAGE)
        start = ctypes.addressof(ctypes.c_char.from_buffer(self._pages))
        for guard in (start, start + PAGE + size):
            if libc.mprotect(ctypes.c_void_p(guard), ctypes.c_size_t(PAGE), NO_ACCESS):
                raise OSError(ctypes.get_errno(), "mprotect failed")
        self.address = start + PAGE + (0 if before else size - len(content))
        self.size = len(content)
        ctypes.memmove(self.address, content, len(content))

    def content(self) -> bytes:
        return ctypes.string_at(self.address, self.size)
