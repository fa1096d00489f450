"""With this chat template vLLM reads a turn again as the model wrote it.

vLLM's parser of tool calls leaves thinking in the content, with the empty line after it, and
writes arguments anew with spaces; a checkpoint's own template adds a line before the call then,
and keeps the spaces. Such a prompt the model never saw.
"""

from __future__ import annotations

from pathlib import Path

from palio.records import ConfigError, InputError

TEMPLATE = "chat_template.jinja"
_PARSED = (
    (
        "{%- if not loop.first or message.content -%}",
        "{%- if not loop.first or"
        ' (message.content and not message.content.endswith("</think>\\n\\n")) -%}',
    ),
    (
        "else call.function.arguments | tojson -%}",
        'else call.function.arguments | tojson(separators=(",", ":")) -%}',
    ),
)
"""What palio's templates say -> what it must be for turns that `hermes` has parsed."""


def vllm_template(checkpoint: Path) -> str:
    """The template of a checkpoint for `vllm serve --chat-template FILE --tool-call-parser hermes`.

    Raises:
        InputError: the checkpoint has no chat template.
        ConfigError: it is none of palio's.
    """
    path = checkpoint / TEMPLATE
    try:
        text = path.read_text("utf-8")
    except OSError as error:
        raise InputError(f"the chat template cannot be read: {error}", where=str(path)) from error
    for own, parsed in _PARSED:
        if text.count(own) != 1:
            raise ConfigError(
                "the checkpoint was trained with a chat template that is none of palio's",
                where=str(path),
                remedy="let vLLM take it as it is",
            )
        text = text.replace(own, parsed)
    return text
