"""Errors that a client may see: a status, a type and code in OpenAI's words, one clear sentence.

Each API renders them in its own shape. Anything else that is raised is a bug and becomes `InternalError`.
"""

from __future__ import annotations

from typing import Any


class ApiError(Exception):
    """Base. `details` are extra fields beside the message (numbers a client may want)."""

    status = 500
    type = "server_error"
    code: str | None = None

    def __init__(self, message: str, *, param: str | None = None, **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.details = details


class InvalidRequest(ApiError):
    """The request cannot be served as it is; `param` names the field."""

    status = 400
    type = "invalid_request_error"
    code = "invalid_value"


class Unsupported(InvalidRequest):
    """A field of the API that this server does not do."""

    code = "unsupported_value"


class ContextLengthExceeded(InvalidRequest):
    """The prompt leaves no room for even one token."""

    code = "context_length_exceeded"

    def __init__(self, prompt_tokens: int, context: int) -> None:
        super().__init__(
            f"the prompt has {prompt_tokens} tokens; this model's context is {context} tokens, the reply included",
            param="messages",
            n_prompt_tokens=prompt_tokens,
            n_ctx=context,
        )


class NotSupported(ApiError):
    """A whole route that this server, or the model on it, does not do."""

    status = 501
    type = "not_supported_error"
    code = "not_supported"


class Unauthorized(ApiError):
    status = 401
    type = "authentication_error"
    code = "invalid_api_key"


class Forbidden(ApiError):
    status = 403
    type = "permission_error"
    code = "forbidden"


class NotFound(ApiError):
    status = 404
    type = "invalid_request_error"
    code = "not_found"


class BodyTooLarge(ApiError):
    status = 413
    type = "invalid_request_error"
    code = "request_too_large"


class RequestTimeout(ApiError):
    """The client took too long to send its request."""

    status = 408
    type = "invalid_request_error"
    code = "request_timeout"


class Unavailable(ApiError):
    """The engine is not there (loading, restarting, failed, or the server is stopping)."""

    status = 503
    type = "unavailable_error"
    code = "unavailable"


class Overloaded(ApiError):
    """Too many requests wait already."""

    status = 503
    type = "overloaded_error"
    code = "overloaded"


class EngineFailed(ApiError):
    """The engine ended, fell silent or reported an error while it worked on this request."""

    status = 503
    type = "server_error"
    code = "engine_failed"


class ToolNotCalled(ApiError):
    """The request demanded a call, and the model did not make it."""

    status = 502
    code = "tool_not_called"


class InternalError(ApiError):
    code = "internal_error"
