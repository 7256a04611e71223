"""Sentences for errors: what happened and what to do, naming the file where there is one."""

import errno

from subquad.errors import OptionError, SubquadError

ADVICE = {
    errno.ENOSPC: "make room, or choose another place",
    errno.EDQUOT: "make room, or choose another place",
    errno.EACCES: "change its permissions, or choose another place",
    errno.EPERM: "change its permissions, or choose another place",
    errno.EROFS: "choose a place that can be written",
    errno.ENOENT: "check the path",
    errno.ENOTDIR: "check the path: a part of it is a file",
    errno.EISDIR: "name a file, not a folder",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.ELOOP: "check the path: its links lead in a circle",
    errno.EMFILE: "close other programs, or raise the limit of open files",
}
SHORT_OF_MEMORY = ("not enough memory", "out of memory", "can't allocate memory", "bad_alloc")


def explanation(error: BaseException) -> str | None:
    """The sentence for an error that comes from outside: the user's input, the system, a full memory. None for a bug."""
    if isinstance(error, OptionError):
        return f"--{error.name.replace('_', '-')} {error.problem}"
    if isinstance(error, SubquadError):
        return str(error)
    if isinstance(error, OSError) and error.errno is not None:
        return system_sentence(error)
    if isinstance(error, UnicodeDecodeError):
        return f"a file that should be text is not: byte {error.start} is not {error.encoding}; save it as UTF-8"
    if isinstance(error, UnicodeEncodeError):
        return f"a text has the letter {error.object[error.start]!a}, which {error.encoding} lacks: set PYTHONUTF8=1"
    if isinstance(error, RecursionError):
        return "the input is nested too deep to be read: simplify it"
    if isinstance(error, MemoryError) or any(words in str(error).lower() for words in SHORT_OF_MEMORY):
        return "there is not enough memory: make the model, the batch or the sequences smaller"
    return None


def system_sentence(error: OSError) -> str:
    """What the system refused, at which file."""
    file = f"{error.filename}: " if error.filename is not None else ""
    advice = ADVICE.get(error.errno or 0)
    return f"{file}{error.strerror or error}" + (f"; {advice}" if advice else "")
