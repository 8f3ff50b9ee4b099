"""Every error that reaches the wire: a class a code, one clear sentence as its text.

Raised anywhere in the engine; only the daemon turns one into an ERR line. Any other exception is a bug and becomes
`internal`.
"""


class EngineError(Exception):
    """Base: `code` is the word after ERR; `fatal` says that the process cannot go on."""

    code = "internal"
    fatal = False


class BadRequest(EngineError):
    """A line that is not in the grammar; the text says what was expected."""

    code = "bad_request"


class BadToken(EngineError):
    """A token id outside the vocabulary."""

    code = "bad_token"


class ContextExceeded(EngineError):
    """The prompt fills the whole context, so nothing could be generated."""

    code = "context_exceeded"


class NonFiniteLogits(EngineError):
    """The model produced NaN or infinity; the sequence state is dropped."""

    code = "non_finite_logits"


class OutOfMemory(EngineError):
    """An allocation failed; the request ends, the engine stays."""

    code = "out_of_memory"


class BadModel(EngineError):
    """The model's files cannot be run: damaged, incomplete, or of a kind that is not supported."""

    code = "bad_model"
    fatal = True


class Internal(EngineError):
    """Something that should not happen."""

    fatal = True
