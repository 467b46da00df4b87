"""The tables of `image_real.py`: what it kept, beside the peers' results.

Every mean has its standard error. Differences are paired, Kunita minus the peer: over landmarks for
the lung, over the ten pairs of subjects for OASIS (the two directions of a pair are averaged
first), over pairs of stains for histology, and over splits. Pairs of stains share images, and
splits share landmarks, so that their standard errors are somewhat too small.
"""

import json
from pathlib import Path
from typing import Any

import image_data
import image_labels
import numpy as np
from image_tables import difference, shown, table, with_error
from matplotlib.axes import Axes
from matplotlib.figure import Figure

Record = dict[str, Any]

LEAST_IN_BIN = 100
"""Voxels; bins with fewer have no share to speak of, and are not drawn."""

LUNG_PEERS = {"elastix": "lung-elastix", "SyN-MI": "lung-syn-mi"}
HISTOLOGY_PEERS = {"SyN": "histology-syn", "elastix": "histology-elastix"}


def file_of(folder: Path, job: str, pairs: str) -> Path:
    """Where the records of a job are kept."""
    of_oasis = job in ("oasis", "labels")
    return folder / (f"{job}-{pairs}.json" if of_oasis else f"{job}.json")


def kept_records(folder: Path, job: str, pairs: str) -> dict[str, Record]:
    """The records of a job, by pair; none where it has not run."""
    path = file_of(folder, job, pairs)
    return json.loads(path.read_text())["records"] if path.exists() else {}


def peer_records(home: Path, job: str) -> list[Record]:
    """The registrations of a peer; none where it has not run."""
    path = home / "peers.json"
    known = json.loads(path.read_text()) if path.exists() else {}
    return known.get(job, {"registrations": []})["registrations"]


def tables(folder: Path, home: Path, pairs: str) -> list[str]:
    """All tables for which there are records."""
    lines = []
    for job in TABLES:
        lines += table_of(job, folder, home, pairs)
    return lines


def table_of(job: str, folder: Path, home: Path, pairs: str) -> list[str]:
    """What is known of one job."""
    records = kept_records(folder, job, pairs)
    if not records:
        return []
    known = json.loads(file_of(folder, job, pairs).read_text())["setting"]
    setting = ", ".join(f"{key} {value}" for key, value in known.items())
    versions = ", ".join(sorted({record["version"] for record in records.values()}))
    lines = TABLES[job](records, home, pairs, folder)
    return [f"**{job}**: {setting}; version {versions}", "", *lines, ""]


# ---------------------------------------------------------------------------------------- the lung


def lung_table(records: dict[str, Record], home: Path, pairs: str, folder: Path) -> list[str]:
    """Errors, cost, folds and calibration."""
    lines = []
    if "fit" in records:
        lines += lung_errors(records["fit"], home)
        lines += ["", *lung_differences(records["fit"], home)]
        lines += ["", *lung_calibration(records["fit"])]
    if "command" in records:
        command = records["command"]
        page = "with" if command["page"] else "without"
        lines += [
            "",
            f"The whole command, {page} a page: {command['cpu_s']:.0f} CPU s, "
            f"{command['peak_mb']:.0f} MB, registration.h5 {command['file_mb']:.0f} MB",
        ]
    return lines


def lung_errors(fit: Record, home: Path) -> list[str]:
    """Errors of all methods, mm, with all landmarks and without the misplaced one."""
    head = ["lung, mm", "mean", "median", "p95", "max", "without 20: mean", "median", "p95"]
    head += ["CPU s", "MB", "min det J", "folds"]
    rows = [lung_row("Kunita", fit)]
    for name, job in LUNG_PEERS.items():
        rows += [lung_row(name, record) for record in peer_records(home, job)]
    rows.append(["affine", *fit["tre_affine"].values(), *[""] * 7])
    told = (
        f"Of Kunita's CPU time {fit['draws_cpu_s']:.0f} s are {fit['num_draws']} draws; kernel "
        f"{fit['kernel']}, {fit['nodes']} nodes, decimation {fit['decimation']:.2f}, mismatch "
        f"{100 * fit['mismatch']:.0f} %; {warned(fit)}"
    )
    return [*table(head, rows), "", told]


def warned(record: Record) -> str:
    """The warnings of a registration."""
    return "; ".join(record["warnings"]) or "no warning"


def lung_row(name: str, record: Record) -> list:
    """One method."""
    others = [record["tre_others"][key] for key in ("mean", "median", "p95")]
    cost = [record[key] for key in ("cpu_s", "peak_mb", "min_det", "folds")]
    return [name, *record["tre"].values(), *others, *cost]


def lung_differences(fit: Record, home: Path) -> list[str]:
    """Paired over landmarks."""
    head = ["Kunita minus", "mean error, mm", "without 20", "landmarks better"]
    rows = []
    ours = np.array(fit["errors"])
    others = np.arange(len(ours)) != image_data.MISPLACED_LANDMARK
    for name, job in LUNG_PEERS.items():
        for record in peer_records(home, job):
            gain = ours - np.array(record["errors"])
            better = f"{np.count_nonzero(gain < 0)} of {len(gain)}"
            rows.append([name, difference(gain), difference(gain[others]), better])
    return table(head, rows)


def lung_calibration(fit: Record) -> list[str]:
    """Regions at the landmarks, with rounding as their noise."""
    head = ["landmarks", "50/80/95 % regions hold, %", "χ²/d", "mean sd, mm", "radius 95 %, mm"]
    head += ["Spearman radius–error"]
    rows = []
    for name, key in (("all", "calibration"), ("without 20", "calibration_others")):
        one = fit[key]
        shares = [
            f"{100 * share:.0f} ± {100 * error:.0f}"
            for share, error in zip(one["inside"], one["inside_se"], strict=True)
        ]
        rank = f"{one['spearman']:.2f} (p {one['spearman_p']:.2g})"
        spread = [one["chi2_per_d"], one["mean_std"], one["mean_radius"]]
        rows.append([name, " / ".join(shares), *spread, rank])
    return table(head, rows)


# ------------------------------------------------------------------------------------------- OASIS


def by_subjects(records: list[Record], values: list[float]) -> dict[tuple[int, int], float]:
    """The mean of both directions, by pair of subjects; pairs with one direction are left out."""
    found: dict[tuple[int, int], list[float]] = {}
    for record, value in zip(records, values, strict=True):
        one, other = sorted((record["fixed"], record["moving"]))
        found.setdefault((one, other), []).append(value)
    return {pair: float(np.mean(both)) for pair, both in found.items() if len(both) == 2}


def paired(
    ours: dict[tuple[int, int], float], theirs: dict[tuple[int, int], float]
) -> tuple[np.ndarray, np.ndarray]:
    """The values of pairs that both have."""
    common = sorted(ours.keys() & theirs.keys())
    return np.array([ours[pair] for pair in common]), np.array([theirs[pair] for pair in common])


def oasis_table(records: dict[str, Record], home: Path, pairs: str, folder: Path) -> list[str]:
    """Dice, folds and cost of all pairs."""
    ours = list(records.values())
    names = {(one["fixed"], one["moving"]) for one in ours}
    everyone = peer_records(home, "oasis-syn-cc")
    theirs = [one for one in everyone if (one["fixed"], one["moving"]) in names]
    head = [f"OASIS, {pairs}", "registrations", "before", "Dice", "CPU s", "folds"]
    head += ["with folds", "min det J"]
    rows = [oasis_row("Kunita", ours)]
    if theirs:
        rows.append(oasis_row("SyN-CC", theirs))
    lines = table(head, rows)
    mine, other = paired(
        by_subjects(ours, [one["dice"] for one in ours]),
        by_subjects(theirs, [one["dice"] for one in theirs]),
    )
    if len(mine):
        gain = mine - other
        lines += [
            "",
            f"Dice, Kunita minus SyN-CC, over {len(gain)} pairs: {difference(gain, 4)}; "
            f"{np.count_nonzero(gain > 0)} better",
        ]
    said = sum(bool(one["warnings"]) for one in ours)
    return [*lines, "", f"{said} of {len(ours)} registrations carry a warning"]


def oasis_row(name: str, records: list[Record]) -> list:
    """One method: means over the pairs of subjects."""
    column = lambda key: np.array([record[key] for record in records])
    dice = np.array(list(by_subjects(records, column("dice").tolist()).values()))
    folds = column("folds")
    return [
        name,
        len(records),
        float(column("dice_before").mean()),
        with_error(dice if len(dice) else column("dice"), 4),
        float(column("cpu_s").mean()),
        int(folds.sum()),
        int(np.count_nonzero(folds)),
        float(column("min_det").min()),
    ]


# ------------------------------------------------------------------------------------------ labels


def with_subjects(records: dict[str, Record]) -> list[Record]:
    """The records of labels, each with its subjects."""
    found = []
    for name, record in records.items():
        fixed, moving = map(int, name.split("-"))
        found.append(record | {"fixed": fixed, "moving": moving})
    return found


def blurs_from_tuning(folder: Path, method: str) -> dict[str, str]:
    """The best constant blur of a method for each score, found on the tuning pairs."""
    tuning = kept_records(folder, "labels", "tuning")
    records = [record for record in tuning.values() if method in record]
    if not records:
        return {}
    return {name: image_labels.best_blur(records, method, name) for name in image_labels.SCORES}


def labels_table(records: dict[str, Record], home: Path, pairs: str, folder: Path) -> list[str]:
    """Scores of label probabilities; each blur is the best for its score on the tuning pairs."""
    everyone = with_subjects(records)
    ours = {
        name: by_subjects(everyone, [one["draws"][name] for one in everyone])
        for name in image_labels.SCORES
    }
    head = [f"labels, {pairs}", "NLL", "Brier", "ECE", "accuracy", "confidence"]
    drawn = [one["draws"] for one in everyone]
    rows = [["Kunita, draws", *score_cells(ours), *means(drawn, "accuracy", "confidence")]]
    gains = []
    for title, method in (("Kunita, mean, blurred", "mean"), ("SyN-CC, blurred", "syn")):
        blurs = blurs_from_tuning(folder, method)
        having = [one for one in everyone if method in one]
        if not blurs or not having:
            continue
        theirs = blurred(having, method, blurs)
        sharp = [one[method][blurs["brier"]] for one in having]
        widths = "/".join(blurs[name] for name in image_labels.SCORES)
        rows.append(
            [
                f"{title} by {widths} px",
                *score_cells(theirs),
                *means(sharp, "accuracy", "confidence"),
            ]
        )
        gains.append([f"draws minus {title}", *gain_cells(ours, theirs), "", ""])
    spread = float(np.mean([one["median_std"] for one in everyone]))
    told = f"Median standard deviation of where a voxel comes from: {spread:.2f} px"
    folds = sum(one["flow_folds"] for one in everyone)
    least = min(one["flow_min_det"] for one in everyone)
    of_flow = (
        f"By the flow's own Jacobian: {folds} folds at voxels, smallest determinant {least:.3g}"
    )
    return [*table(head, rows + gains), "", told, "", of_flow]


def blurred(records: list[Record], method: str, blurs: dict[str, str]) -> dict[str, dict]:
    """The scores of a method, each with its blur, by pair of subjects."""
    return {
        name: by_subjects(records, [one[method][blurs[name]][name] for one in records])
        for name in image_labels.SCORES
    }


def score_cells(scores: dict[str, dict]) -> list[str]:
    """Means over pairs with their standard errors."""
    return [with_error(np.array(list(scores[name].values()))) for name in image_labels.SCORES]


def gain_cells(ours: dict[str, dict], theirs: dict[str, dict]) -> list[str]:
    """Paired differences over pairs."""
    cells = []
    for name in image_labels.SCORES:
        mine, other = paired(ours[name], theirs[name])
        cells.append(difference(mine - other, 4))
    return cells


def means(records: list[Record], *keys: str) -> list[float]:
    """Of some numbers."""
    return [float(np.mean([record[key] for record in records])) for key in keys]


def reliability_figure(folder: Path, home: Path, pairs: str, path: Path) -> None:
    """How often the most probable label is right, by its probability."""
    records = list(kept_records(folder, "labels", pairs).values())
    if not records:
        raise SystemExit(f"--figure: there are no labels of the {pairs} pairs yet")
    figure = Figure(figsize=(4.2, 3.9), layout="constrained")
    axes = figure.add_subplot()
    axes.plot([0, 1], [0, 1], color="0.7", linewidth=1, zorder=0)
    curve(axes, [one["draws"] for one in records], "Kunita, draws from the posterior", "o-")
    blurs = blurs_from_tuning(folder, "syn")
    having = [one for one in records if "syn" in one]
    if blurs and having:
        blur = blurs["ece"]
        warped = [one["syn"][blur] for one in having]
        curve(axes, warped, f"SyN-CC, warped labels blurred by {blur} px", "s--")
    axes.set_xlabel("probability of the most probable label")
    axes.set_ylabel("share of voxels where it is right")
    axes.set_xlim(0.2, 1)
    axes.set_ylim(0.2, 1)
    axes.set_aspect("equal")
    axes.legend(frameon=False, loc="upper left", fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def curve(axes: Axes, scores: list[Record], title: str, style: str) -> None:
    """One method: pooled over pairs, with twice the standard error over registrations."""
    total = lambda key: np.array([one["bins"][key] for one in scores], dtype=float)
    counts = total("count")
    filled = counts.sum(axis=0) >= LEAST_IN_BIN
    weights = counts[:, filled]
    right = total("right")[:, filled]
    confidence = total("confidence")[:, filled].sum(axis=0) / weights.sum(axis=0)
    share = right.sum(axis=0) / weights.sum(axis=0)
    # The standard error of a ratio of sums over registrations.
    residual = right - share * weights
    error = np.sqrt((residual**2).sum(axis=0)) / weights.sum(axis=0)
    axes.errorbar(confidence, share, 2 * error, fmt=style, label=title, markersize=4, capsize=2)


# --------------------------------------------------------------------------------------- histology


def histology_table(records: dict[str, Record], home: Path, pairs: str, folder: Path) -> list[str]:
    """Mean errors of each pair, full-size pixels."""
    ours = list(records.values())
    methods = {"Kunita": ours}
    for name, job in HISTOLOGY_PEERS.items():
        known = {(one["fixed"], one["moving"]): one for one in peer_records(home, job)}
        same = [known.get((one["fixed"], one["moving"])) for one in ours]
        methods[name] = [one for one in same if one is not None]
    methods = {name: found for name, found in methods.items() if len(found) == len(ours)}
    head = ["histology, px", "affine"]
    for name in methods:
        head += [f"{name}: mean", "median", "CPU s", "folds"]
    rows = [histology_row([found[row] for found in methods.values()]) for row in range(len(ours))]
    numbers = np.array([row[1:] for row in rows], dtype=float)
    lines = table(head, [*rows, ["mean", *numbers.mean(axis=0).tolist()]])
    mine = np.array([one["tre"]["mean"] for one in ours])
    for name in [name for name in methods if name != "Kunita"]:
        theirs = np.array([one["tre"]["mean"] for one in methods[name]])
        gain = difference(mine - theirs, 2)
        lines += ["", f"Mean error, Kunita minus {name}, over {len(mine)} pairs: {gain} px"]
    return lines


def histology_row(same_pair: list[Record]) -> list:
    """One pair by all methods."""
    first = same_pair[0]
    row = [f"{first['fixed']} ← {first['moving']}", first["tre_affine"]["mean"]]
    for record in same_pair:
        row += [record["tre"]["mean"], record["tre"]["median"], record["cpu_s"], record["folds"]]
    return row


# ------------------------------------------------------------------------------------------ splits


def splits_table(records: dict[str, Record], home: Path, pairs: str, folder: Path) -> list[str]:
    """Errors at the landmarks that were held out, mm."""
    splits = [record for name, record in records.items() if name != "image"]
    if not splits or "image" not in records:
        return ["no split yet"]
    errors = np.array(records["image"]["errors"])
    image = np.array([errors[split["held_out"]].mean() for split in splits])
    landmarks = np.array([split["landmarks"]["tre"]["mean"] for split in splits])
    both = np.array([split["both"]["tre"]["mean"] for split in splits])
    head = [
        f"{len(splits)} splits, mm",
        "held-out TRE",
        "both minus this",
        "splits with both better",
    ]
    rows: list[list] = [["both", with_error(both), "", ""]]
    for name, values in (("image alone", image), ("landmarks alone", landmarks)):
        gain = both - values
        count = f"{np.count_nonzero(gain < 0)} of {len(gain)}"
        rows.append([name, with_error(values), difference(gain), count])
    seconds = shown(float(np.mean([split["both"]["cpu_s"] for split in splits])))
    return [*table(head, rows), "", f"Both together: {seconds} CPU s"]


TABLES = {
    "lung": lung_table,
    "oasis": oasis_table,
    "labels": labels_table,
    "histology": histology_table,
    "splits": splits_table,
}
