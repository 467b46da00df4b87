"""`kunita suggest`: where one more landmark would lower the uncertainty most."""

from argparse import Namespace
from collections.abc import Iterator
from typing import Any

import numpy as np

from kunita.console import Console
from kunita.data.image import Image
from kunita.data.landmarks import Landmarks
from kunita.errors import ArgumentError, ExitStatus, FileError, ImageError
from kunita.inputs import check_dimension, load_result
from kunita.io.image_files.files import read_image
from kunita.io.landmark_files.files import write_landmarks
from kunita.io.recorded_grids import recorded_grid, recorded_spacing, same_place
from kunita.io.summary_files import plain
from kunita.io.writing import check_writable, complete

PICTURES = (".png", ".pdf", ".svg")

LITTLE = 0.05
"""A gain below this share of the radius is hardly worth the work."""


def suggest(args: Namespace) -> int:
    """`kunita suggest`: nothing is written but what is asked for."""
    from kunita.outputs.suggestions import suggest_landmarks

    console = Console(quiet=args.quiet, as_json=args.json)
    _check_outputs(args)
    reg = load_result(args.result)
    if reg.images is not None:
        raise ArgumentError(
            f"{args.result}: images drove this registration; places for landmarks are suggested "
            "where landmarks alone did"
        )
    with console.warnings(), console.progress() as tell:
        inside = _labels(args, reg.moving.dimension, console)
        progress = tell("looking for places")
        try:
            found = suggest_landmarks(
                reg, inside=inside, label=args.label, noise=args.noise, progress=progress
            )
        except ImageError as error:
            raise FileError(f"{args.inside}: {error}") from error
        for remark in found.remarks:
            console.warn(remark)
        _write(args, reg, found)
    console.answer("\n".join(_lines(args, found)), plain(_document(args, found)))
    return ExitStatus.DONE


def _check_outputs(args: Namespace) -> None:
    """Refuse what cannot be, before anything is computed."""
    if args.label is not None and args.inside is None:
        raise ArgumentError("--label: expected --inside LABELS too, the image that has the label")
    for path in (args.out, args.figure):
        if path:
            check_writable(path, overwrite=args.overwrite)
    if args.figure and args.figure.suffix.lower() not in PICTURES:
        raise FileError.at(
            args.figure, None, f"a name that ends in {', '.join(PICTURES)}", args.figure.name
        )


def _labels(args: Namespace, dimension: int, console: Console) -> Image | None:
    """The labels to look inside; a warning where they lie exactly where the fixed image lies."""
    if args.inside is None:
        return None
    spacing = recorded_spacing(args.result, args.spacing, args.inside)
    labels = read_image(args.inside, spacing=spacing if dimension == 2 else None)
    check_dimension(args.inside, labels.grid.dimension, dimension)
    moving, fixed = (recorded_grid(args.result, side) for side in ("moving", "fixed"))
    if same_place(labels.grid, fixed) and moving is not None and not same_place(moving, fixed):
        console.warn(
            f"{args.inside} lies on the grid of the fixed image; labels of the moving space were expected"
        )
    return labels


def _write(args: Namespace, reg: Any, found: Any) -> None:
    """The points as landmarks of the moving space, and the figure."""
    if args.out:
        names = [f"suggestion {number}" for number in range(1, len(found.places) + 1)]
        points = Landmarks(np.array([place.moving for place in found.places]), names)
        write_landmarks(args.out, points, overwrite=args.overwrite)
    if args.figure:
        from kunita.figures.suggestions import suggestions_figure

        figure = suggestions_figure(found, reg.moving.take(np.flatnonzero(reg.used)))
        with complete(args.figure, overwrite=args.overwrite) as partial:
            figure.savefig(partial, dpi=150)


def _region(args: Namespace) -> str:
    if args.inside is None:
        return "the hull of the moving landmarks"
    return f"{args.inside.name}{'' if args.label is None else f', label {args.label}'}"


def _lines(args: Namespace, found: Any) -> Iterator[str]:
    """The answer for people."""
    dimension = found.points.shape[1]
    frame = "RAS" if dimension == 3 else "IMAGE"
    yield f"Where one more landmark would help most ({_region(args)}; marks with sd {found.noise_mm:.2g} mm)"
    yield f"  mean 95 % radius of the region now: {found.before_mm:.2f} mm"
    for number, place in enumerate(found.places, start=1):
        moving, fixed = (
            ", ".join(f"{x:.1f}" for x in point) for point in (place.moving, place.fixed)
        )
        together = f", {place.together_mm:.2f} mm with those above" if number > 1 else ""
        yield f"  {number}. moving ({moving}) {frame}; look for it within {place.radius95_mm:.1f} mm of fixed ({fixed})"
        yield (
            f"     {found.before_mm:.2f} → {place.alone_mm:.2f} mm if it alone is marked{together}; "
            f"{place.nearest_mm:.0f} mm from the nearest landmark, {place.nearest}"
        )
    if found.before_mm - found.places[0].alone_mm < LITTLE * found.before_mm:
        yield f"  No single landmark would lower it by {100 * LITTLE:.0f} %: the noise of the marks is the limit."
    for what, path in (("points", args.out), ("figure", args.figure)):
        if path:
            yield f"  {what:<10} {path}"


def _document(args: Namespace, found: Any) -> Any:
    """The answer for programs."""
    path = lambda given: None if given is None else str(given)
    return {
        "region": "hull" if args.inside is None else str(args.inside),
        "label": args.label,
        "n_points": len(found.points),
        "noise_mm": found.noise_mm,
        "mean_radius95_mm": found.before_mm,
        "suggestions": [_entry(found, place) for place in found.places],
        "warnings": list(found.remarks),
        "out": path(args.out),
        "figure": path(args.figure),
    }


def _entry(found: Any, place: Any) -> Any:
    return {
        "moving": place.moving,
        "fixed": place.fixed,
        "radius95_mm": place.radius95_mm,
        "mean_radius95_mm_alone": place.alone_mm,
        "mean_radius95_mm_together": place.together_mm,
        "gain_mm": found.before_mm - place.alone_mm,
        "gain_together_mm": found.before_mm - place.together_mm,
        "nearest": place.nearest,
        "nearest_mm": place.nearest_mm,
    }
