"""How small the error of `image_truth.py` can be: that of a posterior that knows the noise.

The pair is generated without noise and registered. Around that flow, nearly the true one, the
posterior is conditioned on what every pixel says with the true gradient and the true variance of
the white noise. The mean error of its mean is what the best method could reach on average, where
the noise is white.

    python benchmarks/image_bound.py --seeds 8 --first 0 --conditions A D
"""

import argparse
import dataclasses
import warnings

import numpy as np
from image_truth import BORDER, CONDITIONS, POINTS

import kunita
from kunita.image_posterior import ImagePosterior
from kunita.observations.image_noise import ImageNoise
from kunita.observations.image_pair import ImagePair, ImageSide, Smoothing
from kunita.observations.intensities import Intensities
from kunita.phantoms.textures import TextureOptions, TexturePair, texture_pair

DRAWS = 500
"""Of an error at each point."""

UNSMOOTHED = Smoothing(width=0.0, stride=1.0)


def side(image: kunita.Image) -> ImageSide:
    """An image that counts everywhere."""
    everywhere = np.ones(image.grid.shape, dtype=bool)
    return ImageSide(np.asarray(image.data, dtype=np.float32), image.affine, everywhere)


def registered(pair: TexturePair, options: TextureOptions) -> ImagePosterior:
    """The posterior of the pair without noise."""
    kernel = kunita.Gaussian(length_scale=options.length_scale, amplitude=options.amplitude)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", kunita.KunitaWarning)
        reg = kunita.register(
            moving_image=pair.moving,
            fixed_image=pair.fixed,
            metric="ssd",
            kernel=kernel,
            init=np.eye(3),
        )
    return reg.posterior


def informed(found: ImagePosterior, pair: TexturePair, options: TextureOptions) -> ImagePosterior:
    """The same flow, conditioned on every pixel with the variance of both images' noise."""
    images = ImagePair(side(pair.moving), side(pair.fixed), found.origin, "ssd")
    lattice = found.cells.lattice
    level = images.level(lattice, UNSMOOTHED)
    arrived = found.move(lattice.nodes) - found.origin
    compared = level.compare(arrived, found.jacobian(lattice.nodes))
    variance = options.noise_of_moving**2 + options.noise_of_fixed**2
    noise = ImageNoise(
        variance=np.full_like(compared.residual, variance),
        excess=np.ones_like(compared.residual),
        tails=np.ones_like(compared.residual),
        decimation=1.0,
    )
    slopes = compared.fixed_slopes
    cells = Intensities(level, noise).condense(compared, slopes, slopes)
    return dataclasses.replace(found, cells=cells, draws=None)


def expected_error(posterior: ImagePosterior, size: int, seed: int) -> float:
    """The mean length of the error at random points."""
    rng = np.random.default_rng(seed)
    points = rng.uniform(BORDER, size - 1 - BORDER, size=(POINTS, 2))
    roots = np.linalg.cholesky(posterior.predict(points).covariance)
    white = rng.normal(size=(DRAWS, POINTS, 2))
    errors = np.einsum("mab,smb->sma", roots, white)
    return float(np.linalg.norm(errors, axis=-1).mean())


def bound(condition: str, seed: int) -> float:
    """Of one pair, in pixels."""
    options = CONDITIONS[condition]
    clean = dataclasses.replace(options, noise_of_moving=0.0, noise_of_fixed=0.0)
    pair = texture_pair(clean, seed)
    posterior = informed(registered(pair, options), pair, options)
    return expected_error(posterior, options.size, seed)


def main() -> None:
    """Print the bound of every pair, and of each condition the median and mean."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--conditions", nargs="+", choices=("A", "B", "D"), default=["A", "D"])
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--first", type=int, default=0)
    args = parser.parse_args()
    for condition in args.conditions:
        seeds = range(args.first, args.first + args.seeds)
        bounds = np.array([bound(condition, seed) for seed in seeds])
        error = bounds.std(ddof=1) / np.sqrt(len(bounds))
        print(
            f"{condition}: median {np.median(bounds):.3f}, mean {bounds.mean():.3f} ± {error:.3f} "
            f"px over {len(bounds)} pairs",
            flush=True,
        )


if __name__ == "__main__":
    main()
