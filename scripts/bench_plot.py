# SPDX-License-Identifier: Apache-2.0
"""Bars of ratios as an SVG picture, each with a mark for what is promised."""

from html import escape

LABEL, SCALE, ROW, MOST = 330, 260, 22, 2.0
COLOURS = {True: "#3a7d44", False: "#b3452c"}  # kept, missed


def line(x, top, bottom, colour, dash=""):
    return (f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{bottom}" '
            f'stroke="{colour}" stroke-dasharray="{dash}"/>')


def text(x, y, words, anchor="start"):
    return (f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">'
            f'{escape(words)}</text>')


def bars(rows):
    """`rows`: (label, ratio, promised ratio). Longer bars are cut at MOST."""
    height = ROW * (len(rows) + 2)
    width = LABEL + int(SCALE * MOST) + 70
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" '
           f'height="{height}" font-family="sans-serif" font-size="12">',
           f'<rect width="{width}" height="{height}" fill="white"/>',
           text(LABEL, 15, "clock time / that of what it is held against; "
                "the mark is what was promised")]
    for i, (label, ratio, promised) in enumerate(rows):
        top = ROW * (i + 1)
        length = SCALE * min(ratio, MOST)
        out += [text(LABEL - 8, top + 14, label, "end"),
                f'<rect x="{LABEL}" y="{top + 3}" width="{length:.1f}" '
                f'height="{ROW - 8}" fill="{COLOURS[ratio <= promised]}"/>',
                text(LABEL + length + 6, top + 14, f"{ratio:.2f}"),
                line(LABEL + SCALE * promised, top + 1, top + ROW - 3, "black")]
    out += [line(LABEL + SCALE, ROW, ROW * (len(rows) + 1), "#888", "3 3"),
            text(LABEL + SCALE, ROW * (len(rows) + 1) + 14, "1.0 = the same",
                 "middle"), "</svg>", ""]
    return "\n".join(out)
