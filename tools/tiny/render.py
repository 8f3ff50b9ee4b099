"""Conversations as the family writes them, and the chat template that writes the same.

A message is a dictionary with role, content and, for the assistant, reasoning_content and tool_calls (name and
arguments). `render` serves the generated texts, TEMPLATE goes into the pack; a test holds them equal.
"""
from __future__ import annotations

import json

TOOLS_BEFORE = "# Tools\n\nYou may call these functions:\n<tools>\n"
TOOLS_AFTER = ("</tools>\n\nTo call one, reply like this:\n<tool_call>\n<function=NAME>\n<parameter=PARAMETER>\nVALUE\n"
               "</parameter>\n</function>\n</tool_call>")

TEMPLATE = """\
{%- set ns = namespace(system='', first=0) %}
{%- if messages and messages[0].role in ('system', 'developer') %}
{%- set ns.system = messages[0].content %}
{%- set ns.first = 1 %}
{%- endif %}
{%- macro text(content) %}
{%- if content is string %}{{ content }}{% elif content %}
{%- for part in content %}
{%- if part is mapping and part.text is defined %}{{ part.text }}{% elif part is string %}{{ part }}
{%- else %}{{ raise_exception('only text parts can be read') }}{% endif %}
{%- endfor %}
{%- endif %}
{%- endmacro %}
{%- if tools %}
{{- '<|im_start|>system\\n' + '""" + TOOLS_BEFORE.replace("\n", "\\n") + """' }}
{%- for tool in tools %}{{ tool | tojson }}{{ '\\n' }}{% endfor %}
{{- '""" + TOOLS_AFTER.replace("\n", "\\n") + """' }}
{%- if ns.system %}{{ '\\n\\n' + text(ns.system) | trim }}{% endif %}
{{- '<|im_end|>\\n' }}
{%- elif ns.system %}
{{- '<|im_start|>system\\n' + text(ns.system) | trim + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages[ns.first:] %}
{%- if message.role == 'user' %}
{{- '<|im_start|>user\\n' + text(message.content) | trim + '<|im_end|>\\n' }}
{%- elif message.role == 'assistant' %}
{{- '<|im_start|>assistant\\n<think>\\n' + (message.reasoning_content or '') | trim + '\\n</think>\\n\\n' }}
{{- text(message.content) | trim }}
{%- for call in message.tool_calls or [] %}
{%- set f = call.function or call %}
{{- '\\n\\n' if loop.first and text(message.content) | trim else ('' if loop.first else '\\n') }}
{{- '<tool_call>\\n<function=' + f.name + '>\\n' }}
{%- for key, value in f.arguments.items() %}
{{- '<parameter=' + key + '>\\n' }}{{ value if value is string else value | tojson }}{{ '\\n</parameter>\\n' }}
{%- endfor %}
{{- '</function>\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- elif message.role == 'tool' %}
{{- '<|im_start|>user' if loop.first or loop.previtem.role != 'tool' else '' }}
{{- '\\n<tool_response>\\n' + text(message.content) + '\\n</tool_response>' }}
{{- '<|im_end|>\\n' if loop.last or loop.nextitem.role != 'tool' else '' }}
{%- else %}{{ raise_exception('unknown role ' ~ message.role) }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n<think>\\n' }}
{%- if enable_thinking is defined and not enable_thinking %}{{ '\\n</think>\\n\\n' }}{% endif %}
{%- endif %}
"""


def render_call(name: str, arguments: dict) -> str:
    """One tool call: strings raw, other values as JSON."""
    body = "".join(f"<parameter={k}>\n{v if isinstance(v, str) else json.dumps(v, ensure_ascii=False)}\n</parameter>\n"
                   for k, v in arguments.items())
    return f"<tool_call>\n<function={name}>\n{body}</function>\n</tool_call>"


def render(messages: list[dict], tools: list[dict] | None = None) -> str:
    """The conversation as text, from the system turn to the last <|im_end|>."""
    out = []
    system = messages[0]["content"] if messages[0]["role"] == "system" else ""
    if tools:
        listed = "".join(json.dumps(t, ensure_ascii=False) + "\n" for t in tools)
        system = TOOLS_BEFORE + listed + TOOLS_AFTER + (f"\n\n{system}" if system else "")
    if system:
        out.append(f"<|im_start|>system\n{system}<|im_end|>\n")
    previous = ""
    for m in messages:
        if m["role"] == "user":
            out.append(f"<|im_start|>user\n{m['content']}<|im_end|>\n")
        elif m["role"] == "tool":
            if previous == "tool":                                           # results of one turn share it
                out[-1] = out[-1].removesuffix("<|im_end|>\n")
            else:
                out.append("<|im_start|>user")
            out.append(f"\n<tool_response>\n{m['content']}\n</tool_response><|im_end|>\n")
        elif m["role"] == "assistant":
            calls = "\n".join(render_call(c["name"], c["arguments"]) for c in m.get("tool_calls", ()))
            content = m.get("content", "")
            out.append(f"<|im_start|>assistant\n<think>\n{m.get('reasoning_content', '')}\n</think>\n\n{content}"
                       f"{chr(10) * 2 if content and calls else ''}{calls}<|im_end|>\n")
        previous = m["role"]
    return "".join(out)
