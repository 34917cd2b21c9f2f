"""Pictures for the page of a run, as SVG that needs nothing from outside. Patterns tell what colours tell, too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from payclient.cli.report_lines import LABELS, NEVER_SENT
from payclient.lifecycle import State

__all__: list[str] = []

#: A colour for each outcome (at least 3:1 on white), and the white lines drawn over it.
_INKS: dict[str, tuple[str, str]] = {
    State.ACCEPTED: ("#1f7a4d", ""),
    State.CANCELLED: ("#b45309", "M-1 1l2-2M0 8l8-8M7 9l2-2"),
    State.REFUSED: ("#9f1239", "M0 0l8 8M0 8l8-8"),
    State.EXPIRED: ("#6d28d9", "M0 4h8"),
    State.UNKNOWN: ("#111827", ""),
    State.PENDING: ("#1d4ed8", "M4 0v8"),
    State.SENDING: ("#1d4ed8", "M0 4h8M4 0v8"),
    NEVER_SENT: ("#6b7280", "M-1 7l2 2M0 0l8 8M7-1l2 2"),
}


def ink(label: str) -> str:
    """The name of an outcome's pattern."""
    return f"ink-{label.replace(' ', '-')}"


def patterns() -> str:
    """The patterns of all outcomes: once on a page, outside of whatever may be hidden."""
    drawn = "".join(
        f'<pattern id="{ink(label)}" width="8" height="8" patternUnits="userSpaceOnUse">'
        f'<rect width="8" height="8" fill="{colour}"/>'
        f'<path d="{lines}" stroke="#fff" stroke-opacity=".55" stroke-width="1.5"/></pattern>'
        for label, (colour, lines) in _INKS.items()
    )
    return f'<svg class="patterns" width="0" height="0" aria-hidden="true"><defs>{drawn}</defs></svg>'


def swatch(label: str) -> str:
    """A little square of an outcome's pattern."""
    return (
        '<svg class="swatch" width="14" height="14" aria-hidden="true">'
        f'<rect width="14" height="14" rx="3" fill="url(#{ink(label)})"/></svg>'
    )


def share_bar(counts: Mapping[str, int], width: int, kind: str) -> str:
    """One bar, cut as the rows are: at least a sliver for each outcome that there is."""
    present = [(label, counts[label]) for label in LABELS if counts.get(label)]
    total = sum(count for _, count in present)
    if not total:
        return ""
    sliver = 4.0
    free = width - sliver * len(present)
    parts, x = [], 0.0
    for label, count in present:
        wide = sliver + free * count / total
        parts.append(
            f'<rect x="{x:.1f}" width="{max(wide - 1, 1):.1f}" height="34" fill="url(#{ink(label)})"/>'
        )
        x += wide
    words = ", ".join(f"{count:,} {label}" for label, count in present)
    return (
        f'<svg class="{kind}" viewBox="0 0 {width} 34" preserveAspectRatio="none" role="img" '
        f'aria-label="{words}">{"".join(parts)}</svg>'
    )


def histogram(
    bars: Sequence[tuple[int, int]], ticks: Sequence[tuple[float, str]], width: int, kind: str
) -> str:
    """Bars of (accepted, cancelled), upward from a line with ticks at parts of its length."""
    left, right, top, height = 40.0, 26.0, 18.0, 150.0
    across = width - left - right
    most = max((sum(bar) for bar in bars), default=0)
    scale = height / max(most, 1)
    step = across / max(len(bars), 1)
    base = top + height
    drawn = [
        f'<line x1="{left}" x2="{width - right}" y1="{top}" y2="{top}" class="grid"/>',
        f'<line x1="{left}" x2="{width - right}" y1="{top + height / 2}" y2="{top + height / 2}" class="grid"/>',
        f'<text x="{left - 6}" y="{top + 4}" class="end">{most:,}</text>',
        f'<text x="{left - 6}" y="{base + 4}" class="end">0</text>',
    ]
    for number, bar in enumerate(bars):
        y = base
        for label, count in zip((State.ACCEPTED, State.CANCELLED), bar, strict=True):
            if count:
                tall = max(count * scale, 1.5)
                y -= tall
                drawn.append(
                    f'<rect x="{left + number * step + 1:.1f}" y="{y:.1f}" width="{max(step - 2, 1):.1f}" '
                    f'height="{tall:.1f}" fill="url(#{ink(label)})"/>'
                )
    drawn.append(f'<line x1="{left}" x2="{width - right}" y1="{base}" y2="{base}" class="axis"/>')
    for part, text in ticks:
        x = left + across * part
        drawn.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{base}" y2="{base + 5}" class="axis"/>'
            f'<text x="{x:.1f}" y="{base + 19}" class="middle">{text}</text>'
        )
    accepted, cancelled = (sum(bar[place] for bar in bars) for place in (0, 1))
    words = f"How long people took to answer: {accepted:,} accepted, {cancelled:,} cancelled"
    return (
        f'<svg class="{kind}" viewBox="0 0 {width} {base + 26:.0f}" role="img" aria-label="{words}">'
        f"{''.join(drawn)}</svg>"
    )
