"""A GGUF with a small real vocabulary and no tensors: all that the gateway reads of a model."""

from pathlib import Path
from typing import Any

from packs.gguf_file import write_gguf
from tools.small_vocabulary import vocabulary_metadata

CONTROL, USER_DEFINED = 3, 4

THINKING_TEMPLATE = """\
{%- for message in messages -%}
<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor -%}
<|im_start|>assistant
{% if enable_thinking is defined and enable_thinking %}<think>
{% elif enable_thinking is defined %}<think>

</think>

{% endif -%}
"""

STRICT_TEMPLATE = """\
{%- for message in messages -%}
{%- if message.role == 'system' and not loop.first %}{{ raise_exception('System message must come first') }}{% endif -%}
{%- if not loop.first and message.role == loop.previtem.role %}{{ raise_exception('Roles must alternate') }}{% endif -%}
{%- if message.role == 'assistant' and (loop.first or loop.previtem.role == 'system') -%}
{{ raise_exception('The user speaks first') }}
{%- endif -%}
<|im_start|>{{ message.role }}
{{ message.content | trim }}<|im_end|>
{% endfor -%}
<|im_start|>assistant
"""

TOOL_TEMPLATE = """\
{%- if tools %}<|im_start|>system
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<tool_call>
<function=NAME>
<parameter=P>
VALUE
</parameter>
</function>
</tool_call><|im_end|>
{% endif -%}
{%- for m in messages -%}
<|im_start|>{{ m.role }}
{{ m.content }}{% for c in m.tool_calls or [] %}[{{ c.id }} {{ c.function.name }}:
{%- for key, value in c.function.arguments.items() %} {{ key }}={{ value | tojson }}{% endfor %}]{% endfor %}
{%- if m.tool_call_id %}[for {{ m.tool_call_id }}]{% endif %}<|im_end|>
{% endfor -%}
<|im_start|>assistant
"""


def vocabulary(*, thinking: bool = False, template: str | None = None) -> dict[str, Any]:
    """The tokenizer metadata; the first 256 ids are the 256 bytes."""
    metadata = vocabulary_metadata()
    if thinking:
        metadata["tokenizer.ggml.tokens"] = [*metadata["tokenizer.ggml.tokens"], "<think>", "</think>"]
        metadata["tokenizer.ggml.token_type"] = [*metadata["tokenizer.ggml.token_type"], USER_DEFINED, USER_DEFINED]
        metadata["tokenizer.chat_template"] = THINKING_TEMPLATE
    if template is not None:
        metadata["tokenizer.chat_template"] = template
    return metadata


def write_model_file(path: Path, metadata: dict[str, Any]) -> Path:
    """Write the file and return its path."""
    write_gguf(path, "qwen3moe", metadata={"general.name": "tiny", **metadata}, tensors={})
    return path
