"""How all figures of the experiments look: for print, in grey, and for every kind of colour vision."""

import matplotlib

COLOURS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""The set of Okabe and Ito: told apart with every kind of colour vision. Markers or dashes say the
same in grey."""

MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 3)), (0, (7, 3)))

PAGE_WIDTH = 7.0
"""Inches: two columns of a page."""

styled = matplotlib.rc_context(
    {
        "font.size": 8,
        "axes.titlesize": 9,
        "axes.labelsize": 8,
        "legend.fontsize": 7.5,
        "xtick.labelsize": 7.5,
        "ytick.labelsize": 7.5,
        "lines.linewidth": 1.2,
        "lines.markersize": 4.5,
        "axes.linewidth": 0.7,
        "axes.grid": True,
        "grid.alpha": 0.25,
        "grid.linewidth": 0.5,
        "image.cmap": "viridis",
        "pdf.fonttype": 42,
    }
)
"""Decorator of a function that draws: a figure of its own looks as all others do, and no global
setting changes."""
