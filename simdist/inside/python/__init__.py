"""What simdist knows of CPython's internals: objects in memory, C types, threads, signals, foreign functions.

Nothing here loads torch.
"""

from simdist.inside.python._dictionaries import ChangeCount, count_of_changes
from simdist.inside.python._endings import end_process
from simdist.inside.python._foreign import (
    FOREIGN_FUNCTION,
    FOREIGN_VALUES,
    PYTHON_LIBRARY,
    ForeignLibrary,
    function_types,
)
from simdist.inside.python._frames import enters_exit
from simdist.inside.python._functions import (
    Batch,
    Make,
    Redirection,
    assigned_globals,
    built_in,
    can_be_redirected,
    code_with,
    inner_of,
    innermost,
    looks_up,
    note_wrapper,
    original,
    without_wrapper,
)
from simdist.inside.python._memory import (
    MappedFile,
    SharedBytes,
    address_of_buffer,
    bytes_at,
    copied_bytes,
    holds_bytes,
    mapped_file,
    number_kinds,
    own_random_words,
    word_in,
    words_at,
)
from simdist.inside.python._signals import set_signal_disposition, signal_disposition
from simdist.inside.python._threads import HANDLE_OF_THREAD, raise_in_thread, without_ctypes
from simdist.inside.python._types import (
    Setter,
    can_exchange_setters,
    finalized_already,
    generic_setter,
    namespace_of,
    note_change,
    noter_of_changes,
    put_setter,
    setter_of,
)

__all__ = [
    "FOREIGN_FUNCTION",
    "FOREIGN_VALUES",
    "HANDLE_OF_THREAD",
    "PYTHON_LIBRARY",
    "Batch",
    "ChangeCount",
    "ForeignLibrary",
    "Make",
    "MappedFile",
    "Redirection",
    "Setter",
    "SharedBytes",
    "address_of_buffer",
    "assigned_globals",
    "built_in",
    "bytes_at",
    "can_be_redirected",
    "can_exchange_setters",
    "code_with",
    "copied_bytes",
    "count_of_changes",
    "end_process",
    "enters_exit",
    "finalized_already",
    "function_types",
    "generic_setter",
    "holds_bytes",
    "inner_of",
    "innermost",
    "looks_up",
    "mapped_file",
    "namespace_of",
    "note_change",
    "note_wrapper",
    "noter_of_changes",
    "number_kinds",
    "original",
    "own_random_words",
    "put_setter",
    "raise_in_thread",
    "set_signal_disposition",
    "setter_of",
    "signal_disposition",
    "without_ctypes",
    "without_wrapper",
    "word_in",
    "words_at",
]
