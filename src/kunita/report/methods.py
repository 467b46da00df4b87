"""A methods paragraph, ready to paste, and what to cite."""

from typing import Any

CITATIONS = (
    "Wassermann D, Toews M, Niethammer M, Wells W III. Probabilistic Diffeomorphic Registration: Representing "
    "Uncertainty. In: Biomedical Image Registration (WBIR 2014), Lecture Notes in Computer Science 8545. Springer, "
    "2014. arXiv:1701.03266.",
    "The Kunita developers. Kunita (version {version}) [computer software].",
)

NUM_PARAMETERS = 3
"""Length scale, amplitude, noise."""

MODELS = {
    "endpoint": "the mean deformation is a flow of diffeomorphisms that maximises the posterior, and the uncertainty a "
    "Gaussian around it, conditioned on where the landmarks end",
    "pathwise": "the mean deformation is a flow of diffeomorphisms that maximises the posterior, and the uncertainty "
    "that of the paper, along the flow's path",
    "small": "in its small-deformation form, displacements are themselves a Gaussian process, which is conditioned on "
    "the landmarks in closed form",
}


def methods(document: Any) -> str:
    """What was done, in the past tense, with every number that a reader needs to repeat it."""
    return " ".join((_fit(document), _prior(document), *_more(document), *_outcome(document)))


def citations(document: Any) -> tuple[str, ...]:
    """What to cite."""
    return tuple(text.format(version=document["version"]) for text in CITATIONS)


def program(version: str, model: str, align: str) -> str:
    """What was at work: the end of one sentence, and another on the alignment."""
    return (
        f"Kunita {version}, which implements the probabilistic diffeomorphic registration of Wassermann et al. (2014): "
        f"{MODELS[model]}. {aligned(align)}."
    )


def aligned(align: str) -> str:
    """What was done about the alignment."""
    if align == "none":
        return "No alignment was part of the model"
    article = "An" if align == "affine" else "A"
    return f"{article} {align} alignment was part of the model"


def _fit(document: Any) -> str:
    return (
        f"{document['n_landmarks']} pairs of homologous landmarks in {document['dimension']}-D, paired by "
        f"{document['pairing']}, were registered with "
        f"{program(document['version'], document['model'], document['align'])}"
    )


def _prior(document: Any) -> str:
    return (
        f"The prior had a {described_kernel(document['kernel'])}; the localisation noise of a pair had a standard deviation of "
        f"{length(document['noise_mm'])} along each axis. {_origin(document)}"
    )


def described_kernel(kernel: Any) -> str:
    """A kernel in words."""
    if "kernels" in kernel:
        return " plus a ".join(described_kernel(part) for part in kernel["kernels"])
    return (
        f"{kernel['family']} kernel with a length scale of {kernel['length_scale_mm']:.3g} mm and an amplitude of "
        f"{kernel['amplitude_mm']:.3g} mm"
    )


def _origin(document: Any) -> str:
    """Where the parameters come from."""
    if document["learned_on"]:
        return f"Kernel and noise were learned on {len(document['learned_on'])} other cases."
    names = [one["name"] for one in document["parameters"]]
    if not names:
        return "Kernel and noise were given."
    unsure = [one["name"] for one in document["parameters"] if not one["determined"]]
    said = [
        f"The {_listed(names)} maximised the marginal likelihood, with weakly informative log-normal priors."
    ]
    if len(names) < NUM_PARAMETERS and "kernels" not in document["kernel"]:
        said.append("The other parameters were given.")
    if unsure:
        said.append(f"The landmarks do not determine the {_listed(unsure)}.")
    return " ".join(said)


def _listed(names: list[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]


def _more(document: Any) -> tuple[str, ...]:
    """What not every registration has."""
    said = []
    if document["robust"]:
        said.append("The noise had heavy tails (Student's t), by reweighting the landmarks.")
    if document["low_rank"]:
        said.append(
            f"{document['low_rank']['num_controls']} control points carried the momentum of all landmarks."
        )
    if document["suspects"]:
        said.append(f"{len(document['suspects'])} of the landmarks were flagged as suspect.")
    if not document["converged"]:
        said.append("The solver did not converge.")
    return tuple(said)


def _outcome(document: Any) -> tuple[str, ...]:
    loo, before, after = document["loo"], document["initial_error_mm"], document["residual_mm"]
    said = [
        f"The mean distance between landmarks was {length(before)} before and {length(after)} after the registration."
    ]
    if loo is not None:
        said.append(
            f"Each landmark predicted from the others was {length(loo['error_mm'])} off on average, and "
            f"{100 * loo['coverage']['95']:.0f} % of them fell inside their 95 % region."
        )
    hull = (document.get("expected") or {}).get("hull")
    if hull:
        middle, worst = length(hull["median_radius95_mm"]), length(hull["worst_radius95_mm"])
        said.append(
            f"Inside the landmarks' convex hull the predicted 95 % radius was {middle} (median), {worst} at most."
        )
    return tuple(said)


def length(value: float | None) -> str:
    """A length in words."""
    return "an unknown number of mm" if value is None else f"{value:.2f} mm"
