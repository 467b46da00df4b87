"""A methods paragraph, ready to paste, and what to cite."""

from typing import Any

CITATIONS = (
    "Wassermann D, Toews M, Niethammer M, Wells W III. Probabilistic Diffeomorphic Registration: Representing "
    "Uncertainty. In: Biomedical Image Registration (WBIR 2014), Lecture Notes in Computer Science 8545. Springer, "
    "2014. arXiv:1701.03266.",
    "Kunita (version {version}) [computer software].",
)

MODELS = {
    "endpoint": "a Gaussian approximation of the posterior over the flow's end points",
    "pathwise": "a Gaussian approximation along the path of the flow",
    "small": "the small-deformation model",
}


def methods(document: Any) -> str:
    """What was done, in the past tense, with every number that a reader needs to repeat it."""
    return " ".join((*_fit(document), *_outcome(document)))


def citations(document: Any) -> tuple[str, ...]:
    """What to cite."""
    return tuple(text.format(version=document["version"]) for text in CITATIONS)


def _fit(document: Any) -> tuple[str, ...]:
    n, align = document["n_landmarks"], document["align"]
    aligned = "without an alignment" if align == "none" else f"with a {align} alignment as part of the model"
    return (
        f"{n} pairs of homologous landmarks in {document['dimension']}-D, paired by {document['pairing']}, were "
        f"registered with Kunita {document['version']}, which implements the probabilistic diffeomorphic registration "
        f"of Wassermann et al. (2014): velocities have a Gaussian-process prior, the mean deformation is the flow that "
        f"maximises the posterior ({MODELS.get(document['model'], document['model'])}), {aligned}.",
        f"The prior had a {_kernel(document['kernel'])}; the localisation noise of a pair had a standard deviation of "
        f"{document['noise_mm']:.2f} mm per axis. {_origin(document)}",
    )


def _kernel(kernel: Any) -> str:
    if "kernels" in kernel:
        return " plus a ".join(_kernel(part) for part in kernel["kernels"])
    return (
        f"{kernel['family']} kernel with a length scale of {kernel['length_scale_mm']:.3g} mm and an amplitude of "
        f"{kernel['amplitude_mm']:.3g} mm"
    )


def _origin(document: Any) -> str:
    if document["learned_on"]:
        return f"Kernel and noise were learned on {len(document['learned_on'])} other cases."
    names = [one["name"] for one in document["parameters"]]
    if not names:
        return "All of these were set by hand."
    chosen = f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]
    return f"The {chosen} maximised the marginal likelihood."


def _outcome(document: Any) -> tuple[str, ...]:
    loo = document["loo"]
    said = [
        f"The mean distance between landmarks fell from {document['initial_error_mm']:.2f} mm to "
        f"{document['residual_mm']:.2f} mm."
    ]
    if loo is not None:
        said.append(
            f"Each landmark predicted from the others was {loo['error_mm']:.2f} mm off on average, and "
            f"{100 * loo['coverage']['95']:.0f} % of them fell inside their 95 % region."
        )
    hull = (document.get("expected") or {}).get("hull")
    if hull:
        said.append(
            f"Inside the landmarks' convex hull the predicted 95 % radius was {hull['median_radius95_mm']:.2f} mm "
            f"(median) and {hull['worst_radius95_mm']:.2f} mm (largest)."
        )
    return tuple(said)
