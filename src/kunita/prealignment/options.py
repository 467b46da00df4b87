"""How an alignment is searched for: levels of resolution, and angles to start from."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Level:
    """One resolution of the search.

    Args:
        voxels: about so many are left of each image.
        smoothing: standard deviation of the Gaussian that smooths these, voxels.
        samples: at most so many take part in the mutual information.
        first_step: how far the search moves the voxels at first, voxels.
        last_step: the step at which it ends, voxels.
        iterations: at most.
    """

    voxels: int
    smoothing: float
    samples: int
    first_step: float
    last_step: float
    iterations: int


@dataclasses.dataclass(frozen=True)
class SearchOptions:
    """How an alignment is searched for.

    Args:
        coarse: the level at which all starts are compared.
        fine: the levels at which the best is refined, one after the other.
        angles: to start from, degrees; in 3-D about each axis.
        refined: how many of the starts are compared again at the first fine level.
        bins: of the histograms of the intensities.
        clipped: share of the voxels that is clipped at either end of the intensities.
        relaxation: of the step wherever the gradient turns round.
    """

    coarse: Level
    fine: tuple[Level, ...]
    angles: tuple[float, ...]
    refined: int = 3
    bins: int = 32
    clipped: float = 0.005
    relaxation: float = 0.7


# Tried on a chest CT and on twenty pairs of stained sections, with three seeds each. Neither
# steps nor samples nor bins matter much; unsmoothed fine levels cost 2 px of 13.
OPTIONS = {
    2: SearchOptions(
        coarse=Level(10_000, 1.0, 5_000, 2.0, 0.0125, 60),
        fine=(
            Level(10_000, 0.7, 10_000, 0.5, 0.02, 100),
            Level(40_000, 0.7, 30_000, 0.5, 0.02, 100),
        ),
        angles=(15.0, -15.0, 30.0, -30.0, 60.0, -60.0, 180.0),
    ),
    3: SearchOptions(
        coarse=Level(8_000, 1.0, 4_000, 2.0, 0.0125, 60),
        fine=(
            Level(40_000, 0.7, 16_000, 0.5, 0.02, 100),
            Level(250_000, 0.7, 60_000, 0.5, 0.02, 100),
        ),
        angles=(20.0, -20.0),
    ),
}
"""By dimension."""
