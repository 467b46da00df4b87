"""Whether the intensities of two images are related: the experiment that chose the rule, and its
judge.

    python benchmarks/image_relation.py develop --data DATA
    python benchmarks/image_relation.py judge --data DATA

`develop` registers pairs that are related (two people of the tuning subjects of OASIS, within a
small mask too, two scans of a lung, generated textures in conditions A to D) and pairs that are not
(one side inverted or upside down or mirrored or turned by 90 degrees, a brain and a lung, two
textures), with every metric. It prints how the gradients of each pair are correlated before and
after the flow, and before it with axes of the moving image reversed; the smallest value of the
related pairs beside the largest of the others; and how often the rule is wrong.

`judge` asks the rule, once it is fixed, about pairs that had no part in it: neighbouring sections
with different stains, and the MRI and the ultrasound of one brain.
"""

import argparse
import dataclasses
import itertools
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import image_data
import numpy as np
from scipy import ndimage

import kunita
from kunita.observations.relation import LEAST_AFTER, LEAST_BEFORE
from kunita.phantoms.textures import TextureOptions, texture_pair

CONDITIONS = {
    "A": TextureOptions(),
    "B": TextureOptions(amplitude=9.0, length_scale=30.0),
    "C": TextureOptions(correlation=1.5),
    "D": TextureOptions(noise_of_moving=0.3, noise_of_fixed=0.3),
}
PIXELS = kunita.Sum((kunita.Gaussian(25.0, 5.0), kunita.Gaussian(6.0, 3.0)))
"""A flexible prior, which makes unrelated images as similar as they get."""

LUNG = kunita.Sum((kunita.Gaussian(60.0, 8.0), kunita.Gaussian(25.0, 5.0)))
SECTION = kunita.Sum((kunita.Gaussian(400.0, 60.0), kunita.Gaussian(100.0, 20.0)))
HEAD = kunita.Sum((kunita.Gaussian(30.0, 5.0), kunita.Gaussian(12.0, 3.0)))
"""Length scales and amplitudes in mm, and in full-size pixels for sections."""

CHANGED = (0, 2, 4)
"""Subjects whose pairs are tried in all forms."""

MASK = (slice(60, 100), slice(70, 120))
"""The middle of a brain slice."""

LUNG_STEP = (3, 3, 2)
HEAD_STEP = 3
"""Of the voxels that are taken, so that a pair takes a minute."""


@dataclasses.dataclass(frozen=True, eq=False)
class Pair:
    """Two images and whether their intensities are related; None where that is the question."""

    name: str
    is_related: bool | None
    moving: kunita.Image
    fixed: kunita.Image
    kernel: object = PIXELS
    mask: kunita.Image | None = None
    init: np.ndarray | None = None
    align: str = "rigid"


def plane(values: np.ndarray) -> kunita.Image:
    """A plane with pixels of length one."""
    return kunita.Image(np.ascontiguousarray(values, np.float32), np.eye(3))


def brains(data: Path) -> Iterator[Pair]:
    """Pairs of people, and what becomes of them if one side is changed."""
    subjects = image_data.oasis_subjects(data)[:20]
    for first, second in image_data.TUNING_PAIRS:
        fixed = plane(subjects[first].values)
        values = subjects[second].values
        top = values.max()
        inside = np.where(values > 0, top - values, 0)
        yield Pair(f"people {first}", True, plane(values), fixed)
        yield Pair(f"inverted inside {first}", False, plane(inside), fixed)
        if first not in CHANGED:
            continue
        yield Pair(f"inverted {first}", False, plane(top - values), fixed)
        yield Pair(f"upside down {first}", False, plane(values[:, ::-1]), fixed)
        yield Pair(f"turned {first}", False, plane(turned(values)), fixed)
        mask = np.zeros(values.shape, np.uint8)
        mask[MASK] = 1
        yield Pair(f"masked {first}", True, plane(values), fixed, mask=plane(mask))
        yield Pair(f"masked, inverted {first}", False, plane(inside), fixed, mask=plane(mask))


def turned(values: np.ndarray) -> np.ndarray:
    """By 90 degrees, cut and padded to the same shape."""
    wide = np.pad(np.rot90(values), ((0, 0), (16, 16)))
    return wide[16:176]


def lungs(data: Path) -> Iterator[Pair]:
    """Two scans of one lung, one of them inverted, and a slice of it against brains."""
    found = image_data.lung(data)
    moving = coarse(found.moving)
    fixed = coarse(found.fixed)
    to_moving = np.eye(4)
    to_moving[:3, :3] = found.affine.matrix
    to_moving[:3, 3] = found.affine.offset
    init = np.linalg.inv(to_moving)
    negative = kunita.Image(-np.asarray(moving.data), moving.affine)
    yield Pair("lung", True, moving, fixed, LUNG, init=init)
    yield Pair("lung, inverted", False, negative, fixed, LUNG, init=init)
    for name, axis in (("upside down", 2), ("mirrored", 0)):
        values = np.ascontiguousarray(np.flip(moving.data, axis))
        flipped = kunita.Image(values, moving.affine)
        yield Pair(f"lung, {name}", False, flipped, fixed, LUNG, init=init)
    middle = found.fixed.values[:, :, found.fixed.values.shape[2] // 2]
    smooth = ndimage.gaussian_filter(middle, 1.0)
    as_large = ndimage.zoom(smooth, np.array([160, 192]) / smooth.shape, order=1)
    subject = image_data.oasis_subjects(data)[0]
    yield Pair("brain and lung", False, plane(subject.values), plane(as_large / as_large.max()))


def coarse(volume: image_data.Volume) -> kunita.Image:
    """Every so many-th voxel of a smoothed volume."""
    smooth = ndimage.gaussian_filter(volume.values, np.array(LUNG_STEP) / 2)
    steps = tuple(slice(None, None, step) for step in LUNG_STEP)
    affine = np.diag([*(volume.spacing * LUNG_STEP), 1.0])
    affine[:3, 3] = volume.origin
    return kunita.Image(smooth[steps].astype(np.float32), affine)


def textures() -> Iterator[Pair]:
    """Textures that moved, with all kinds of noise, and textures that have nothing in common."""
    for (name, options), seed in itertools.product(CONDITIONS.items(), (0, 1)):
        pair = texture_pair(options, seed)
        yield Pair(f"texture {name}{seed}", True, pair.moving, pair.fixed)
    first = texture_pair(CONDITIONS["A"], 0)
    for seed in (1, 2):
        other = texture_pair(CONDITIONS["A"], seed)
        yield Pair(f"textures 0 and {seed}", False, first.moving, other.fixed)
    yield Pair("texture, inverted", False, plane(-np.asarray(first.moving.data)), first.fixed)


def sections(data: Path) -> Iterator[Pair]:
    """Neighbouring sections with different stains, at quarter size."""
    for first, second in itertools.combinations(image_data.histology(data), 2):
        name = f"{first.stain} and {second.stain}"
        yield Pair(name, None, as_image(first.image), as_image(second.image), SECTION)


def as_image(volume: image_data.Volume) -> kunita.Image:
    """A volume of the benchmarks as an image."""
    affine = np.diag([*volume.spacing, 1.0])
    affine[:-1, -1] = volume.origin
    return kunita.Image(volume.values.astype(np.float32), affine)


def head(data: Path) -> Iterator[Pair]:
    """The MRI and the ultrasound of one brain, which share a world."""
    images = []
    for name in ("Case24-US", "Case24-MRI"):
        image = kunita.read_image(data / "resect" / f"{name}.nii.gz")
        step = (slice(None, None, HEAD_STEP),) * 3
        smooth = ndimage.gaussian_filter(np.asarray(image.data, np.float32), HEAD_STEP / 2)
        affine = image.affine @ np.diag([*3 * (HEAD_STEP,), 1.0])
        images.append(kunita.Image(smooth[step], affine))
    ultrasound, mri = images
    seen = kunita.Image((np.asarray(ultrasound.data) > 0).astype(np.uint8), ultrasound.affine)
    yield Pair("ultrasound and MRI", False, ultrasound, mri, HEAD, mask=seen, init=np.eye(4))


def registered(pair: Pair, metric: str) -> kunita.Registration:
    """The registration of a pair; planes that lie alike start where they are."""
    is_known = pair.is_related is not None
    d = pair.moving.grid.dimension
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return kunita.register(
            moving_image=pair.moving,
            fixed_image=pair.fixed,
            moving_mask=pair.mask,
            kernel=pair.kernel,
            metric=metric,
            init=np.eye(d + 1) if is_known and pair.init is None else pair.init,
        )


def run(pairs: Iterator[Pair], metrics: list[str]) -> dict[bool | None, list]:
    """Register pairs, print a line for each, and collect by whether they are related."""
    collected: dict[bool | None, list] = {True: [], False: [], None: []}
    for pair in pairs:
        for metric in metrics:
            began = time.process_time()
            found = registered(pair, metric).images.relation
            seconds = time.process_time() - began
            verdict = "related" if found.is_found else "WARNED OF"
            reversal = found.reversal
            print(
                f"{pair.name:26s} {metric:5s} before {found.before:6.3f}  after {found.after:6.3f}"
                f"  reversed {reversal.before:6.3f} -> {reversal.after:6.3f}  {verdict:9s} (truly: {pair.is_related})  {seconds:.0f} s",
                flush=True,
            )
            collected[pair.is_related].append(found)
    return collected


def develop(data: Path, metrics: list[str]) -> None:
    """Print the separation of related and unrelated pairs."""
    collected = run(itertools.chain(textures(), brains(data), lungs(data)), metrics)
    for name, threshold in (("before", LEAST_BEFORE), ("after", LEAST_AFTER)):
        least = min(getattr(found, name) for found in collected[True])
        largest = max(getattr(found, name) for found in collected[False])
        print(f"{name}: related >= {least:.3f}, others <= {largest:.3f}, threshold {threshold}")
    false_alarms = sum(not found.is_found for found in collected[True])
    missed = sum(found.is_found for found in collected[False])
    print(
        f"{false_alarms} of {len(collected[True])} related pairs warned of, "
        f"{missed} of {len(collected[False])} others not"
    )


def judge(data: Path, metrics: list[str]) -> None:
    """Ask the rule about pairs that had no part in it."""
    run(itertools.chain(head(data), sections(data)), metrics)


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("mode", choices=("develop", "judge"))
    parser.add_argument("--data", help="the folder with the images; else KUNITA_DATA")
    parser.add_argument("--metrics", nargs="+", default=["lncc", "ssd", "both"])
    given = parser.parse_args()
    ask = develop if given.mode == "develop" else judge
    ask(image_data.data_folder(given.data), given.metrics)


if __name__ == "__main__":
    main()
