"""The help of commands and options in Spanish: the help that cyclopts makes, with each sentence translated."""

import re
from typing import Any

import attrs
from cyclopts.help import DefaultFormatter, HelpPanel, InlineText
from rich.console import Console, ConsoleOptions
from rich.text import Text

from payclient.cli.texts import sentence


class _Words(InlineText):
    """A description to which cyclopts appends the default and the choices, translated here."""

    def append(self, text: Text) -> None:
        name, colon, values = text.plain.partition(":")
        super().append(Text(sentence(name) + colon + values, text.style))


def _translate(described: Any) -> Any:
    """Return a description with each paragraph, or line of a list, in this run's language."""
    if not isinstance(described, InlineText):
        return described
    source: Any = described.primary_renderable
    kind = "plaintext" if isinstance(source, Text) else "markdown"
    parts = re.split(r"(\n\s*\n|\n(?=- ))", source.plain if kind == "plaintext" else source.markup)
    parts[::2] = (sentence(" ".join(part.split())) for part in parts[::2])
    return _Words.from_format("".join(parts), kind, force_empty_end=described.force_empty_end)


class Help(DefaultFormatter):
    """Formats help as cyclopts does, in this run's language."""

    def __call__(self, console: Console, options: ConsoleOptions, panel: HelpPanel) -> None:
        entries = [
            attrs.evolve(
                entry,
                description=_translate(entry.description),
                metavar=entry.metavar and sentence(entry.metavar),
                positional_label=entry.positional_label and sentence(entry.positional_label),
            )
            for entry in panel.entries
        ]
        super().__call__(console, options, panel.copy(title=sentence(str(panel.title)), entries=entries))

    def render_usage(self, console: Console, options: ConsoleOptions, usage: Any) -> None:
        # The names of commands are in lower case, and stay as they are.
        words = (each if each.islower() else sentence(each) for each in f"Usage: {usage}".split())
        console.print(Text(f"{' '.join(words)}\n", "bold"))

    def render_description(self, console: Console, options: ConsoleOptions, description: Any) -> None:
        super().render_description(console, options, _translate(description))
