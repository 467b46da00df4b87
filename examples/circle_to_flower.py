"""Register a circle of landmarks to a flower, say how sure the answer is, and draw it.

python examples/circle_to_flower.py --out demo
"""

import argparse
import pathlib

import numpy as np

import kunita
from kunita.figures.deformation import deformed_grid
from kunita.phantoms.shapes import circle, flower


def main(out: pathlib.Path) -> kunita.Registration:
    """Register, print the summary, write the record and the figure."""
    moving, fixed = circle(), flower()
    reg = kunita.register(
        moving,
        fixed,
        kernel=kunita.Gaussian(length_scale=2.0, amplitude=2.0),
        noise=0.2,
        align="none",
    )
    print(reg.summary())
    axes = np.linspace(-15, 15, 121)
    dense = np.stack(np.meshgrid(axes, axes), -1).reshape(-1, 2)
    smallest = np.linalg.det(reg.posterior.jacobian(dense)).min()
    print(
        f"  folding    none: smallest Jacobian determinant {smallest:.3f} on a {len(axes)}×{len(axes)} grid"
    )
    centre, rim = (reg.posterior.predict(np.array([p])) for p in ([0.0, 0.0], [10.0, 0.0]))
    print(f"  95 % of the time a point lies within {rim.radius(0.95)[0]:.2f} mm at a landmark, "
          f"{centre.radius(0.95)[0]:.2f} mm at the centre")  # fmt: skip
    out.mkdir(parents=True, exist_ok=True)
    kunita.save(reg, out / "registration.h5", overwrite=True)
    deformed_grid(reg).savefig(out / "circle_to_flower.png", dpi=150)
    print(f"wrote {out / 'registration.h5'} and {out / 'circle_to_flower.png'}")
    return reg


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("demo"))
    main(parser.parse_args().out)
