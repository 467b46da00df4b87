"""Accuracy and calibration on generated brain-shift cases, whose truth is not of the model's
making.

For each seed: mean error inside the ultrasound's fan and inside the tumour, before and after, the
mean radius of the 95 % region, and how many true points it holds; then the means over the seeds.
Ratios: error after / before, and coverage / 95 %. (The tumour is one place: its points are right or
wrong together.)

    python benchmarks/brain_shift.py [--seeds 10]
"""

import argparse
import warnings

import numpy as np

import kunita
from kunita.demo import against_truth
from kunita.errors import KunitaWarning
from kunita.phantoms.brain_shift import brain_shift


def main():
    """Run the cases and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=10)
    warnings.simplefilter("ignore", KunitaWarning)
    rows = {"fan": [], "tumour": []}
    print("seed  length scale   where      before   after  95 % radius  held")
    for seed in range(parser.parse_args().seeds):
        case = brain_shift(seed, spacing=4.0)
        reg = kunita.register(case.moving, case.fixed)
        truth = against_truth(case, reg, seed)
        for place, found in rows.items():
            t = getattr(truth, place)
            numbers = t.before_mm, t.after_mm, t.radius95_mm, t.held_95
            found.append(numbers)
            print(
                f"{seed:4d}{reg.kernel.length_scale:11.0f} mm   {place:<8}"
                + "{:7.2f}{:9.2f}{:11.2f}{:9.2f}".format(*numbers)
            )
    for place, found in rows.items():
        before, after, _, held = np.mean(found, axis=0)
        print(
            f"{place}: after / before {after / before:.2f}, held {held:.3f}, held / 0.95 = {held / 0.95:.2f}"
        )


if __name__ == "__main__":
    main()
