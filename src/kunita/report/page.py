"""One self-contained page about one registration: the answer, a viewer, figures, numbers."""

import dataclasses
import functools
import shlex
from collections.abc import Iterator
from importlib import resources
from pathlib import PurePath
from typing import Any

import numpy as np

import kunita
from kunita.data.image import Grid
from kunita.errors import InverseError
from kunita.kernels import describe_kernel
from kunita.outputs.layers import Layers
from kunita.outputs.maps import Maps, maps
from kunita.outputs.summary import LandmarkRows
from kunita.record import Registration
from kunita.report.answer import Answer, answer, mm
from kunita.report.drawings import HISTOGRAM_NODES, drawings
from kunita.report.files import result_files
from kunita.report.image_answer import image_answer
from kunita.report.image_drawings import image_drawings
from kunita.report.image_methods import image_methods
from kunita.report.look import licences, look, nothing
from kunita.report.methods import citations, methods
from kunita.report.planes import shown_grid
from kunita.report.readout import readout
from kunita.report.tables import Table, input_table, landmark_table, target_table

SECTIONS = (
    ("answer", "Answer"),
    ("viewer", "Look"),
    ("figures", "Figures"),
    ("landmarks", "Landmarks"),
    ("targets", "Targets"),
    ("parameters", "Parameters"),
    ("files", "Files"),
    ("provenance", "Provenance"),
    ("methods", "Methods"),
)


NO_LAYERS = Layers()


@dataclasses.dataclass(frozen=True, eq=False)
class Subject:
    """What a page is about.

    Args:
        reg, rows: the registration, and what became of its landmarks.
        document: its summary, as `summary.json` has it.
        found: the maps on the fixed grid; None without a fixed image, or where they cannot be made.
        layers: the images on that grid.
        files: pairs of usual name and name in the folder, of all files of the result.
    """

    reg: Registration
    rows: LandmarkRows
    document: Any
    found: Maps | None = None
    layers: Layers = NO_LAYERS
    files: tuple[tuple[str, str], ...] = ()


def page(subject: Subject) -> str:
    """The page as HTML."""
    reg, rows = subject.reg, subject.rows
    found, reason = _maps(subject)
    document = _with_least_jacobian(subject.document, found)
    seen = None if found is None else readout(found)
    layers = subject.layers if subject.found is not None else NO_LAYERS
    looking = (
        nothing(reason) if found is None or seen is None else look(reg, rows, found, seen, layers)
    )
    looking = dataclasses.replace(looking, planes=tuple(map(_as_markup, looking.planes)))
    draw = drawings if reg.images is None else image_drawings
    drawn = [_as_markup(one) for one in draw(reg, rows, document, found, seen, layers)]
    tables = {"landmarks": _landmark_table(reg, rows), "targets": target_table(document)}
    return rendered(
        "report.html",
        "registration",
        _title(document),
        _subtitle(reg, found),
        [(anchor, name) for anchor, name in SECTIONS if tables.get(anchor, True)],
        answer=_answer(subject, document),
        look=looking,
        figures=drawn,
        **tables,
        parameters=tuple(_parameters(reg, document)),
        provenance=tuple(_provenance(document)),
        files=result_files(subject.files, document["dimension"], _spacings(document)),
        inputs=input_table(_roles(document)),
        methods=(methods if reg.images is None else image_methods)(document),
        citations=citations(document),
        created=document.get("created"),
        data={**looking.data, "targets": _target_places(document)},
        blobs=looking.blobs,
        notices=licences() if looking.kind == "volume" else "",
        scripts=("page.js", "readout.js", "viewer.js"),
    )


def _as_markup(one: Any) -> Any:
    """A drawing that the page takes as it is."""
    from markupsafe import Markup

    return dataclasses.replace(one, drawing=Markup(one.drawing))


def rendered(
    template: str,
    kind: str,
    title: str,
    subtitle: str,
    sections: list[tuple[str, str]],
    *,
    scripts: Any,
    **content: Any,
) -> str:
    """A template of ours, filled in: whatever it is given is text, and never markup, unless it says
    so itself.
    """
    from markupsafe import Markup

    read = lambda name: (
        resources.files("kunita.report").joinpath("page", name).read_text(encoding="utf-8")
    )
    return (
        _templates()
        .get_template(template)
        .render(
            kind=kind,
            title=title,
            subtitle=subtitle,
            sections=sections,
            version=kunita.__version__,
            css=Markup(read("page.css")),
            script=Markup("\n".join(read(name) for name in scripts)),
            **content,
        )
    )


@functools.cache
def _templates() -> Any:
    import jinja2

    loader = jinja2.PackageLoader("kunita.report", "page")
    made = jinja2.Environment(
        loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True
    )
    made.policies["json.dumps_kwargs"] = {
        "sort_keys": False
    }  # volumes lie on each other in their order
    return made


def _maps(subject: Subject) -> tuple[Maps | None, str]:
    """The maps on the image's grid, or in a box around the landmarks; or why there are none."""
    if subject.found is not None:
        return subject.found, ""
    try:
        return maps(subject.reg, shown_grid(subject.reg, subject.rows)), ""
    except InverseError as error:
        return None, str(error)


def _answer(subject: Subject, document: Any) -> Answer:
    """What stands at the top."""
    if subject.reg.images is not None:
        return image_answer(document)
    return answer(document, subject.rows, _doubts(subject.reg))


def _landmark_table(reg: Registration, rows: LandmarkRows) -> Table | None:
    """What became of the landmarks; None where images alone drove the fit."""
    if not len(rows.names):
        return None
    return landmark_table(rows, judged=reg.images is None)


def _with_least_jacobian(document: Any, found: Maps | None) -> Any:
    """The summary, with the smallest determinant that was seen anywhere: the page has one number
    for it.
    """
    if found is None or document["min_jacobian"] is None:
        return document
    seen = float(found.determinants(HISTOGRAM_NODES).min())
    return {**document, "min_jacobian": min(document["min_jacobian"], found.least_jacobian, seen)}


def _target_places(document: Any) -> list[dict[str, Any]]:
    """Where the viewer finds each target."""
    return [
        {"name": one["name"], "place": one["position"]}
        for one in document["targets"]
        if "name" in one
    ]


def _spacings(document: Any) -> dict[str, list[float]]:
    """Of the pictures that were registered, mm."""
    grids = {side: grid for side, grid in (document.get("grids") or {}).items() if grid}
    return {
        side: Grid(grid["shape"], grid["affine"]).spacing.tolist() for side, grid in grids.items()
    }


def _doubts(reg: Registration) -> frozenset[str]:
    """The warnings that say what the list of suspects says."""
    if reg.suspicion is None:
        return frozenset()
    names = [label for label, used in zip(reg.moving.labels, reg.used, strict=True) if used]
    return frozenset(f"suspect: {line}" for line in reg.suspicion.lines(names))


def _title(document: Any) -> str:
    """The names of what was registered."""
    inputs = document.get("inputs") or {}
    pairs = (("moving_image", "fixed_image"), ("moving", "fixed"))
    names = next(
        (
            [PurePath(inputs[side]["path"]).name for side in pair]
            for pair in pairs
            if all(side in inputs for side in pair)
        ),
        None,
    )
    if names is None:
        return "Registration" if "moving" not in inputs else PurePath(inputs["moving"]["path"]).name
    return f"{names[0]} → {names[1]}"


def _subtitle(reg: Registration, found: Maps | None) -> str:
    pixels = (
        found is not None and found.grid.dimension == 2 and bool(np.all(found.grid.spacing == 1))
    )
    unit = "one pixel counts as one millimetre" if pixels else "millimetres"
    if reg.images is not None:
        return f"{_image_count(reg)}; moving → fixed, {unit}"
    n, used = len(reg.moving), int(reg.used.sum())
    plural = "landmark" if n == 1 else "landmarks"
    count = f"{used} {plural}" if used == n else f"{used} of {n} {plural}"
    return f"{count} in {reg.fixed.dimension}-D, paired by {reg.pairing}; moving → fixed, {unit}"


def _image_count(reg: Registration) -> str:
    """What drove the fit."""
    count = len(reg.moving)
    plural = "landmark" if count == 1 else "landmarks"
    beside = f" and {count} {plural}" if count else ""
    return f"two images{beside} in {reg.fixed.dimension}-D"


def _parameters(reg: Registration, document: Any) -> Iterator[tuple[str, str]]:
    yield "model", f"{reg.model}, alignment {reg.align}{', robust' if reg.robust else ''}"
    yield "kernel", describe_kernel(reg.kernel)
    if document.get("registered_images"):
        yield from _image_parameters(document["registered_images"])
    if len(reg.moving):
        yield from _landmark_parameters(reg, document)
    if reg.learned_on:
        yield "prior", f"learned on {len(reg.learned_on)} other cases"
    if np.isfinite(reg.evidence):
        yield "log evidence", f"{reg.evidence:.2f}"
    yield "energy", f"{reg.energy:.4g}"
    yield "solver", _solver(reg)
    yield "smallest Jacobian determinant", _said(document["min_jacobian"], ".4g")
    if reg.truncation is not None:
        yield (
            "low rank",
            f"{reg.truncation.num_controls} control points; at most {reg.truncation.mean_error_mm:.1g} mm",
        )


def _solver(reg: Registration) -> str:
    """How the search ended."""
    state = "converged" if reg.converged else "NOT converged"
    left = "residual" if reg.images is None else "last step"
    steps = reg.posterior.num_steps
    return f"{state}; {reg.iterations} iterations, {left} {reg.gap_mm:.1e} mm, {steps} time steps"


def _image_parameters(images: Any) -> Iterator[tuple[str, str]]:
    """How images were compared."""
    yield "where the kernel comes from", "the evidence" if images["prior_chosen"] else "given"
    yield "metric", images["metric"]
    start = (
        f"{images['starts']} starts, mutual information {_said(images['mutual_information'], '.3g')}"
        if images["starts"]
        else "given"
    )
    yield "alignment that the search started from", start
    yield "overlap after it", f"{100 * images['overlap']:.0f} % of the moving image"
    nodes = f"{images['nodes']:,} nodes, {mm(images['node_spacing_mm'])} mm apart"
    yield "lattice", nodes
    yield "decimation", f"{images['decimation']:.3g} neighbouring voxels count as one"
    ratio = images.get("sandwich_ratio")
    if ratio:
        spread = f"{ratio['low']:.2f} to {ratio['high']:.2f} at nine of ten places"
        yield "sandwich over claimed deviations", f"{ratio['median']:.2f} (median), {spread}"
    yield (
        "mismatch",
        f"noise of twice the usual and more around {100 * images['mismatch']:.1f} % of the compared voxels",
    )
    error = f"{100 * images['monte_carlo_error']:.1f} %"
    yield "draws from the posterior", f"{images['draws']}; Monte Carlo error of a radius {error}"


def _landmark_parameters(reg: Registration, document: Any) -> Iterator[tuple[str, str]]:
    """How well landmarks were marked, and what they say of the prior."""
    yield "localisation noise", f"{mm(reg.noise_mm)} mm, standard deviation per axis"
    for one in reg.chosen:
        unit = "" if one.name == "noise factor" else " mm"
        told = (
            f"95 % from {one.low:.3g} to {one.high:.3g}"
            if one.identified
            else "the landmarks do not tell it"
        )
        yield f"{one.name}, by the evidence", f"{one.value:.3g}{unit}; {told}"
    yield (
        "FRE, FLE",
        f"{mm(document['fre_mm'])} mm, {mm(document['fle_mm'])} mm (how closely they fit, how well marked)",
    )


def _roles(document: Any) -> dict[str, Any]:
    return {role.replace("_", " "): one for role, one in (document.get("inputs") or {}).items()}


def origin_facts(origin: Any) -> Iterator[tuple[str, str]]:
    """Command, time and programs, as far as they are known."""
    if origin.get("command"):
        yield "command", without_folders(origin["command"])
    if origin.get("created"):
        yield "made", origin["created"]
    software = origin.get("software") or {"kunita": origin["version"]}
    yield "software", ", ".join(f"{name} {version}" for name, version in software.items())


def _provenance(document: Any) -> Iterator[tuple[str, str]]:
    yield from origin_facts(document)
    fixed = "label probabilities and checks use fixed ones (seeds 0 and 1)"
    own = "none in the fit"
    if document.get("registered_images"):
        own = "draws, and the search for an alignment: those of --seed (0 unless given)"
    yield "random numbers", f"{own}; {fixed}"
    yield "time", f"{_said(document['seconds'], '.2f')} s for the fit"


def without_folders(command: str) -> str:
    """A command with the names of files alone: a page may be sent to others."""
    return shlex.join(
        PurePath(word).name if "/" in word or "\\" in word else word
        for word in shlex.split(command)
    )


def _said(value: float | None, form: str) -> str:
    return "not a number" if value is None else f"{value:{form}}"
