"""Sentences for errors that say what happened and what to do, and name the file if there is one."""

from subquad.errors import OptionError, SubquadError
from subquad.files import because

SHORT_OF_MEMORY = ("not enough memory", "out of memory", "can't allocate memory", "bad_alloc")


def explanation(error: BaseException) -> str | None:
    """Returns the sentence for an error of the user's input or the system, such as full memory; None for a bug."""
    if isinstance(error, OptionError):
        return f"--{error.name.replace('_', '-')} {error.problem}"
    if isinstance(error, SubquadError):
        return str(error)
    if isinstance(error, OSError) and error.errno is not None:
        return because(error) if error.filename is None else f"{error.filename}: {because(error)}"
    if isinstance(error, UnicodeDecodeError):
        return f"a file that should be text is not: byte {error.start} is not {error.encoding}; save it as UTF-8"
    if isinstance(error, UnicodeEncodeError):
        return f"a text has the letter {error.object[error.start]!a}, which {error.encoding} lacks: set PYTHONUTF8=1"
    if isinstance(error, RecursionError):
        return "the input is nested too deep to be read: simplify it"
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and _is_short_of_memory(str(error))):
        return "there is not enough memory: make the model, the batch or the sequences smaller"
    return None


def _is_short_of_memory(message: str) -> bool:
    """Whether the message of PyTorch's `RuntimeError` reports a lack of memory."""
    return any(words in message.lower() for words in SHORT_OF_MEMORY)
