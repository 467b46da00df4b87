"""A methods paragraph for a registration that images drive, ready to paste."""

from collections.abc import Iterator
from typing import Any

from kunita.report.methods import aligned, described_kernel, length

METRICS = {
    "ssd": "their smoothed intensities were compared by squared differences",
    "lncc": "intensities were compared by local normalised correlation: each relative to the mean "
    "and standard deviation of its surroundings",
    "both": "intensities were compared by squared differences and by local normalised correlation "
    "together",
}
"""How images were compared, by metric."""


def image_methods(document: Any) -> str:
    """What was done, in the past tense, with the numbers that a reader needs to repeat it."""
    sentences = (
        _fit(document),
        _start(document),
        _comparison(document),
        *_prior(document),
        *_outcome(document),
    )
    return " ".join(sentences)


def _fit(document: Any) -> str:
    count = document["n_landmarks"]
    pairs = "pair" if count == 1 else "pairs"
    beside = (
        f" and {count} {pairs} of homologous landmarks, paired by {document['pairing']},"
        if count
        else ""
    )
    return (
        f"Two images{beside} in {document['dimension']}-D were registered with Kunita "
        f"{document['version']}, which implements the probabilistic diffeomorphic registration of "
        "Wassermann et al. (2014) for images: the mean deformation is a flow of diffeomorphisms "
        "that maximises the posterior, and the uncertainty a Gaussian around it, given what was "
        f"compared where it arrives. {aligned(document['align'])}."
    )


def _start(document: Any) -> str:
    """Where the alignment started."""
    images = document["registered_images"]
    share = f"{100 * images['overlap']:.0f} % of the moving image lay inside the fixed one"
    if not images["starts"] and document["align"] == "none":
        return f"No alignment was searched: {share}."
    if not images["starts"]:
        return f"The search started from a transform that was given, after which {share}."
    return (
        "The search started from the alignment with the largest mutual information that was found "
        f"from {images['starts']} starting positions, after which {share}."
    )


def _comparison(document: Any) -> str:
    images = document["registered_images"]
    return (
        f"From smooth images to sharp ones{_quick(images)}, {METRICS[images['metric']]}. The residuals had a robust "
        "local variance, larger where the images did not match, and Huber's weights. All compared "
        f"voxels were condensed on a lattice of {images['nodes']} nodes, "
        f"{length(images['node_spacing_mm'])} apart, by cubic splines. As neighbouring residuals "
        f"are correlated, {images['decimation']:.1f} voxels counted as one "
        f"(decimation).{_noise_widths(images)}{_sandwich(images)}{_masks(document)}"
    )


def _noise_widths(images: Any) -> str:
    """That noise which was correlated by itself was divided out."""
    widths = images["noise_widths_mm"]
    if not widths:
        return ""
    along = ", ".join(f"{width:.2g}" for width in widths)
    return (
        " The noise was itself correlated, as by Gaussians of the widths "
        f"{along} {images['unit']} along the voxel axes, which was divided out."
    )


def _sandwich(images: Any) -> str:
    """How the residuals bear out the uncertainty, if that is known."""
    ratio = images.get("sandwich_ratio")
    if not ratio:
        return ""
    return (
        " Standard deviations by a sandwich estimate with the residuals' autocorrelation were "
        f"{ratio['median']:.2f} times those reported (median; {ratio['low']:.2f} to "
        f"{ratio['high']:.2f} at nine of ten places)."
    )


def _quick(images: Any) -> str:
    """Whether the finest level was left out."""
    return " (the finest level was left out, to be quick)" if images.get("first_look") else ""


def _masks(document: Any) -> str:
    """Whether only a part of the images counted, as far as the inputs are known."""
    inputs = document.get("inputs") or {}
    masked = [side for side in ("moving", "fixed") if f"{side}_mask" in inputs]
    if not masked:
        return ""
    plural = "images" if len(masked) > 1 else "image"
    return f" What lay outside the mask of the {' and the '.join(masked)} {plural} did not count."


def _prior(document: Any) -> Iterator[str]:
    images = document["registered_images"]
    origin = "was given, or a default for a first look" if images["first_look"] else "was given"
    if images["prior_chosen"]:
        origin = (
            "maximised, within limits, the evidence of a linearised model on parts of the images"
        )
    yield f"The prior had a {described_kernel(document['kernel'])}, which {origin}."
    if document["n_landmarks"]:
        yield (
            f"The localisation noise of a pair of landmarks had a standard deviation of "
            f"{length(document['noise_mm'])} along each axis."
        )
    yield (
        f"{images['draws']} draws from the posterior gave the covariances of the maps; the relative "
        f"Monte Carlo error of a radius from them is {100 * images['monte_carlo_error']:.1f} %."
    )


def _outcome(document: Any) -> Iterator[str]:
    if not document["converged"]:
        yield "The solver did not converge."
    found = (document.get("expected") or {}).get("compared")
    if found:
        yield (
            "Where the images were compared, the predicted 95 % radius was "
            f"{length(found['median_radius95_mm'])} (median), {length(found['worst_radius95_mm'])} "
            f"at most at the {found['places']} places that were looked at."
        )
    share = document["registered_images"]["mismatch"]
    yield f"The images did not match around {100 * share:.1f} % of the compared voxels."
    if document["n_landmarks"]:
        before, after = document["initial_error_mm"], document["residual_mm"]
        yield (
            f"The mean distance between landmarks, which the fit used, was {length(before)} before "
            f"and {length(after)} after the registration."
        )
