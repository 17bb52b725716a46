"""Small pictures for the class page, as SVG that stands in the page itself."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup, escape

BLUE, LINE = "#2a6fb0", "#d9e0e7"
SHARES = (0.0, 0.25, 0.5, 0.75)  # upper ends of the bins between none and nearly all of the points


def bins_of_shares(shares: Sequence[float]) -> list[int]:
    """The number of shares that are none, up to a quarter, a half, three quarters, nearly all, all."""
    counts = [0] * (len(SHARES) + 2)
    for share in shares:
        if share >= 1.0:
            counts[-1] += 1
        else:
            place = next((i for i, end in enumerate(SHARES) if share <= end), len(SHARES))
            counts[place] += 1
    return counts


def bars(counts: Sequence[int], width: int = 150, height: int = 18) -> Markup:
    """A row of bars without labels; each one's number appears under the pointer."""
    step, most = width / len(counts), max(max(counts), 1)
    parts = []
    for place, count in enumerate(counts):
        tall = count / most * (height - 2)
        parts.append(
            f'<rect x="{place * step:.1f}" y="{height - 1 - tall:.1f}" width="{step - 2:.1f}" '
            f'height="{max(tall, 0.5):.1f}" fill="{BLUE if count else LINE}">'
            f"<title>{count}</title></rect>"
        )
    said = escape(", ".join(map(str, counts)))
    return Markup(
        f'<svg width="{width}" height="{height}" role="img" aria-label="{said}">{"".join(parts)}</svg>'
    )


def histogram(
    values: Sequence[float], maximum: float, width: int = 640, height: int = 130
) -> Markup:
    """How the scores 0..maximum are distributed: a bar a point, twenty bars at most."""
    count = int(min(20, max(5, round(maximum))))
    counts = [0] * count
    for value in values:
        share = min(max(value / maximum, 0.0), 1.0) if maximum else 0.0
        counts[min(int(share * count), count - 1)] += 1
    floor, top, step = height - 18, 16, width / count
    most = max(max(counts), 1)
    parts = [f'<line x1="0" x2="{width}" y1="{floor}" y2="{floor}" stroke="{LINE}"/>']
    for place, number in enumerate(counts):
        tall = number / most * (floor - top)
        left, middle = place * step, (place + 0.5) * step
        parts.append(
            f'<rect x="{left + 1:.1f}" y="{floor - tall:.1f}" width="{step - 2:.1f}" '
            f'height="{tall:.1f}" fill="{BLUE}"/>'
        )
        if number:
            parts.append(
                f'<text x="{middle:.1f}" y="{floor - tall - 4:.1f}" text-anchor="middle">{number}</text>'
            )
    for place, anchor in ((0.0, "start"), (0.5, "middle"), (1.0, "end")):
        parts.append(
            f'<text x="{place * width:.0f}" y="{height - 3}" text-anchor="{anchor}">'
            f"{place * maximum:g}</text>"
        )
    said = f"distribution of the scores: {', '.join(map(str, counts))}"
    return Markup(
        f'<svg class="figure" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="{escape(said)}">{"".join(parts)}</svg>'
    )
