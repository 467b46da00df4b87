"""The deformed grid with its uncertainty."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, QuadMesh
from matplotlib.figure import Figure

from kunita.figures.ellipses import ellipses
from kunita.record import Registration


def deformed_grid(
    reg: Registration, margin: float = 0.25, num_lines: int = 33, num_points: int = 129
) -> Figure:
    """A 2-D registration: the moving grid carried to fixed space, coloured by the standard
    deviation at each point.

    Landmarks are drawn where they were, where they should go, and where they arrive with their 95 %
    ellipse.
    """
    moving, fixed = reg.moving.points, reg.fixed.points
    box = _box(moving, margin)
    figure = Figure(figsize=(8.2, 7), layout="constrained")
    axes = figure.add_subplot()
    axes.set_aspect("equal")
    colour = _uncertainty_background(axes, reg, box, num_points)
    axes.add_collection(
        LineCollection(_grid_lines(reg, box, num_lines), colors="0.15", linewidths=0.5, alpha=0.7)
    )
    arrived = reg.posterior.predict(moving)
    axes.plot(*moving.T, "o", ms=4, mfc="white", mec="0.2", mew=0.8, label="moving landmarks")
    axes.plot(*fixed.T, "o", ms=3, color="tab:orange", label="fixed landmarks")
    axes.add_collection(
        ellipses(axes, arrived.mean, arrived.covariance, edgecolors="tab:red", linewidths=0.7)
    )
    axes.plot(
        *arrived.mean.T, "+", ms=4, color="tab:red", label="where they arrive, with 95 % ellipse"
    )
    axes.set(
        xlabel="x (mm)",
        ylabel="y (mm)",
        title=f"Deformed grid and its standard deviation ({reg.model})",
    )
    figure.colorbar(colour, ax=axes, label="standard deviation (mm)", shrink=0.85)
    figure.legend(loc="outside lower center", ncols=3, frameon=False)
    return figure


def _box(points: np.ndarray, margin: float) -> tuple[np.ndarray, np.ndarray]:
    size = np.ptp(points, axis=0).max()
    return points.min(axis=0) - margin * size, points.max(axis=0) + margin * size


def _uncertainty_background(
    axes: Axes, reg: Registration, box: tuple[np.ndarray, np.ndarray], num_points: int
) -> QuadMesh:
    """Colour by the standard deviation, on the deformed mesh itself: every colour stands where its
    point arrives.
    """
    x, y = (np.linspace(low, high, num_points) for low, high in zip(*box, strict=True))
    mesh = np.stack(np.meshgrid(x, y), -1)
    got = reg.posterior.predict(mesh.reshape(-1, 2))
    where, std = got.mean.reshape(mesh.shape), got.std.reshape(mesh.shape[:2])
    return axes.pcolormesh(
        where[..., 0],
        where[..., 1],
        std,
        shading="gouraud",
        cmap="viridis",
        vmin=0,
        rasterized=True,
    )


def _grid_lines(
    reg: Registration, box: tuple[np.ndarray, np.ndarray], num_lines: int
) -> list[np.ndarray]:
    """The images of straight lines of the moving space."""
    x, y = (np.linspace(low, high, num_lines) for low, high in zip(*box, strict=True))
    fine = np.linspace(0, 1, 8 * num_lines)
    ends = [np.stack([np.full_like(fine, c), y[0] + fine * (y[-1] - y[0])], -1) for c in x]
    ends += [np.stack([x[0] + fine * (x[-1] - x[0]), np.full_like(fine, c)], -1) for c in y]
    lines = np.stack(ends)
    return list(reg.posterior.predict(lines.reshape(-1, 2)).mean.reshape(lines.shape))
