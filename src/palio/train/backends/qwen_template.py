"""Qwen3's own chat template gets generation marks, and not a letter of what it writes changes.

Qwen3 leaves out the thinking before a user's last message, and of an earlier turn an empty thinking
block. The text of a conversation is therefore a prefix of the longer ones only in some of them: one
request, answered in turns that think or in turns that do not. `templates.row_segments` tries each
row. The template itself is not palio's: it is read where TRL ships it, or from the model's folder.
"""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

from palio.records import ConfigError, MissingDependencyError

QWEN3 = "qwen3"
"""Name of the template in a recipe."""
_PACKAGE, _INSIDE = "trl", "chat_templates/qwen3.jinja"
_OPENS = r"""'<|im_start|>' + message.role + '\n"""
_MARKED = re.compile(r"\{%-?\s*generation\s*-?%\}")
_PLACES: tuple[tuple[str, str, int], ...] = (
    # the turn is opened before the branches, which all begin with the same words
    (
        re.escape("{%- if loop.index0 > ns.last_query_index %}"),
        "{{- " + _OPENS + "' }}{%- generation %}{%- if loop.index0 > ns.last_query_index %}",
        1,
    ),
    (re.escape(_OPENS + r"<think>\n'"), r"'<think>\n'", 1),
    (re.escape("{{- " + _OPENS + "' + content }}"), "{{- content }}", 2),
    # a turn's end is what the model writes, the line break after it is not
    (
        re.escape(r"{{- '<|im_end|>\n' }}") + r"(?=\s*\{%- elif message\.role == \"tool\" %\})",
        r"{{- '<|im_end|>' }}{%- endgeneration %}{{- '\n' }}",
        1,
    ),
)
"""Pattern, what stands there instead, and how often it must be found."""


def marked(template: str) -> str | None:
    """Qwen3's own template with its assistant turns marked; None: it is another template."""
    if _MARKED.search(template):
        return None
    for pattern, instead, times in _PLACES:
        template, found = re.subn(pattern, instead.replace("\\", r"\\"), template)
        if found != times:
            return None
    return template


def qwen3_original() -> str:
    """Qwen3's chat template as it is published, without marks.

    Raises:
        MissingDependencyError: TRL, which ships it, is not installed.
    """
    spec = find_spec(_PACKAGE)
    folders = spec.submodule_search_locations if spec is not None else None
    path = Path(folders[0]) / _INSIDE if folders else None
    if path is None or not path.is_file():
        raise MissingDependencyError(
            f"Qwen3's chat template stands in the package {_PACKAGE}, which is not installed",
            remedy="pip install 'palio[train]', or name the model's own file",
        )
    return path.read_text("utf-8")


def qwen3_template() -> str:
    """Qwen3's chat template with marks.

    Raises:
        MissingDependencyError: TRL is not installed.
        ConfigError: TRL ships another one.
    """
    made = marked(qwen3_original())
    if made is None:
        raise ConfigError(
            "this version of TRL ships a template of Qwen3 that palio does not know",
            remedy="name the file of the model's own, or leave `template` empty",
        )
    return made
