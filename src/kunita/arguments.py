"""What can be typed after `kunita`: every command and its arguments. Nothing heavy is imported
here.
"""

import argparse
import math
import sys
from pathlib import Path
from typing import NoReturn

import kunita
from kunita.errors import ExitStatus

DESCRIPTION = """\
Probabilistic diffeomorphic registration: the smooth, invertible deformation that takes landmarks in a moving space
to the same landmarks in a fixed space, and how sure it is at every point, in millimetres.

Research software. Not for clinical decisions."""

EPILOG = """\
exit status: 0 done; 2 the input was refused, one line says why; 3 the fit did not converge (files are written and
marked); 1 a bug.

  kunita demo                                               a complete example on generated data
  kunita register mri.mrk.json us.mrk.json --out result     two landmark files
  kunita register case.tag --out result --moving-image mri.nii.gz --fixed-image us.nii.gz
  kunita register --from-images before.nii.gz after.nii.gz --out result"""

FRAMES = ("RAS", "LPS", "IMAGE")
ALIGNMENTS = ("none", "translation", "rigid", "similarity", "affine")
METRICS = ("lncc", "ssd", "both")
MODELS = ("endpoint", "pathwise", "small")
KERNELS = ("gaussian", "matern32", "matern52", "matern72", "rational")
EXPERIMENTS = ("moments", "synthetic", "clinical")
MAPS = ("fc", "std", "radius", "cov", "jacobian")


def parser() -> argparse.ArgumentParser:
    """All commands and their arguments."""
    top = _Parser("kunita", description=DESCRIPTION, epilog=EPILOG, formatter_class=_Formatter)
    top.add_argument("--version", action="version", version=f"kunita {kunita.__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for add in (
        _demo,
        _register,
        _report,
        _predict,
        _warp,
        _uncertainty,
        _suggest,
        _pool,
        _convert,
        _info,
        _tune,
        _loo,
        _reproduce,
    ):
        add(commands)
    return top


class _Parser(argparse.ArgumentParser):
    """Refuses in one line, as every refusal of Kunita is; the usage is what --help is for."""

    def error(self, message: str) -> NoReturn:
        sys.stderr.write(f"kunita: error: {message} (see `{self.prog} --help`)\n")
        sys.exit(ExitStatus.REFUSED)


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Paragraphs as they are written; options in a column that fits their names."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=30, width=110)


def _command(
    commands: argparse._SubParsersAction, name: str, text: str, more: str = ""
) -> argparse.ArgumentParser:
    return commands.add_parser(
        name,
        help=text,
        description=f"{text[0].upper()}{text[1:]}.\n{more}",
        formatter_class=_Formatter,
    )


def _demo(commands: argparse._SubParsersAction) -> None:
    command = _command(
        commands,
        "demo",
        "run the main job end to end on generated data",
        "\nMakes a brain-shift case (an MRI, an intra-operative ultrasound, 30 landmarks, a tumour) as the files a\n"
        "user would have, registers it, and compares with the known truth. With --images: two MRIs, before and after\n"
        "the brain sank, and no landmarks.",
    )
    command.add_argument(
        "--images", action="store_true", help="register two MRIs by their intensities"
    )
    command.add_argument(
        "--out",
        type=Path,
        default=Path("demo"),
        metavar="DIR",
        help="where to write (default: demo)",
    )
    command.add_argument(
        "--seed", type=_seed, default=0, help="another number, another case (default: 0)"
    )
    _talking(command)
    _overwriting(command)


def _register(commands: argparse._SubParsersAction) -> None:
    command = _command(
        commands,
        "register",
        "register moving landmarks to fixed ones, or a moving image to a fixed one",
        "\nLandmark files: Slicer .mrk.json and .fcsv, MNI .tag, CSV/TSV (own, ANTs, Slicer, BigWarp, BIRL), elastix\n"
        "and transformix points, .tps, voxel text. One file with two volumes (a .tag) will do for both sides.\n"
        "\nImages (NIfTI, NRRD, MetaImage, DICOM folders, pictures) drive the registration with --from-images, alone\n"
        "or together with --landmarks. See docs/images.md.",
    )
    command.add_argument(
        "moving", type=Path, nargs="?", metavar="MOVING", help="landmarks in the moving space"
    )
    command.add_argument(
        "fixed", type=Path, nargs="?", metavar="FIXED", help="the same landmarks in the fixed space"
    )
    command.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="folder for the results"
    )
    model = command.add_argument_group("model (what is not given is chosen by the evidence)")
    model.add_argument(
        "--length-scale", type=_positive, metavar="MM", help="how far a displacement reaches"
    )
    model.add_argument(
        "--amplitude", type=_positive, metavar="MM", help="how large displacements are"
    )
    model.add_argument(
        "--noise", type=_positive, metavar="MM", help="sd of the marks (default: the files')"
    )
    model.add_argument(
        "--kernel",
        choices=(*KERNELS, "best"),
        help="family of the prior (default: gaussian); best: the evidence's",
    )
    model.add_argument(
        "--align",
        choices=ALIGNMENTS,
        help="alignment in the model (default: rigid, or the prior's)",
    )
    model.add_argument(
        "--model", choices=MODELS, default="endpoint", help="posterior (default: endpoint)"
    )
    model.add_argument(
        "--prior",
        type=Path,
        metavar="prior.json",
        help="kernel and noise that `kunita tune` learned",
    )
    model.add_argument(
        "--scale-noise", action="store_true", help="choose a factor on the given noise, too"
    )
    model.add_argument(
        "--robust",
        action="store_true",
        help="heavy-tailed noise: gross errors pull less, and are named",
    )
    _driving(command)
    _carrying(command)
    _reading(command, sides=True)
    forms = command.add_argument_group("outputs")
    forms.add_argument(
        "--cov", action="store_true", help="also write the map of the full covariance"
    )
    forms.add_argument(
        "--nrrd", action="store_true", help="also write the transforms as NRRD, for Slicer"
    )
    forms.add_argument(
        "--nifti-xfm", action="store_true", help="also write them as NIfTI displacement fields"
    )
    forms.add_argument(
        "--bids",
        action="store_true",
        help="BIDS-derivatives names and sidecars (from sub-… file names)",
    )
    forms.add_argument("--no-report", action="store_true", help="no report.html (nor overview.png)")
    _talking(command)
    _overwriting(command)


def _driving(command: argparse.ArgumentParser) -> None:
    """Images that drive a registration."""
    images = command.add_argument_group(
        "images that drive the registration (the other options here need --from-images)"
    )
    images.add_argument(
        "--from-images",
        type=Path,
        nargs=2,
        metavar=("MOVING", "FIXED"),
        help="register these images, in place of landmarks or together with --landmarks",
    )
    images.add_argument(
        "--landmarks", type=Path, nargs=2, metavar=("A", "B"), help="landmarks beside the images"
    )
    images.add_argument(
        "--metric",
        choices=METRICS,
        help="lncc: how intensities stand out from their surroundings (default); ssd: the intensities of one "
        "scanner; both",
    )
    images.add_argument(
        "--moving-mask", type=Path, metavar="IMG", help="positive where the moving image counts"
    )
    images.add_argument(
        "--fixed-mask", type=Path, metavar="IMG", help="positive where the fixed image counts"
    )
    images.add_argument(
        "--init",
        type=Path,
        metavar="XFM",
        help="ITK transform to start from, in the direction of forward_xfm.h5",
    )
    images.add_argument(
        "--seed", type=_seed, metavar="N", help="of the random numbers (default: 0)"
    )
    images.add_argument(
        "--quick",
        action="store_true",
        help="a first look: without the finest level, with a default prior and fewer draws",
    )


def _carrying(command: argparse.ArgumentParser) -> None:
    """What is carried along."""
    images = command.add_argument_group("images and points to carry along")
    images.add_argument(
        "--moving-image", type=Path, metavar="IMG", help="warped onto the fixed grid"
    )
    images.add_argument("--fixed-image", type=Path, metavar="IMG", help="the grid of all maps")
    images.add_argument(
        "--labels",
        type=Path,
        metavar="IMG",
        help="labels in moving space, carried as probabilities",
    )
    images.add_argument(
        "--targets",
        type=Path,
        metavar="POINTS",
        help="points, mesh or streamlines in moving space to carry along",
    )


def _report(commands: argparse._SubParsersAction) -> None:
    command = _command(
        commands,
        "report",
        "make the page of a result again: report.html, one self-contained file",
        "\nThe fixed image is looked for where it was when the result was made. An existing report.html is replaced.",
    )
    command.add_argument(
        "result", type=Path, metavar="DIR", help="folder that `kunita register` wrote"
    )
    command.add_argument(
        "--fixed-image", type=Path, metavar="IMG", help="the fixed image, if it was moved"
    )
    command.add_argument(
        "--out", type=Path, metavar="FILE.html", help="where to write (default: DIR/report.html)"
    )
    _talking(command)
    _overwriting(command)


def _predict(commands: argparse._SubParsersAction) -> None:
    command = _command(
        commands,
        "predict",
        "carry points, a mesh or streamlines to the other space, with their uncertainty",
        "\nPoints of the moving space go to fixed space. The output's suffix says its format.",
    )
    command.add_argument(
        "result", type=Path, metavar="DIR", help="folder that `kunita register` wrote"
    )
    command.add_argument(
        "points",
        type=Path,
        metavar="POINTS",
        help="landmarks, mesh (.vtk .vtp .ply .stl .gii), streamlines (.trk .tck)",
    )
    command.add_argument("--out", type=Path, required=True, metavar="FILE", help="where to write")
    command.add_argument(
        "--inverse", action="store_true", help="points of the fixed space to moving space"
    )
    command.add_argument(
        "--reference", type=Path, metavar="IMG", help="image whose grid a .trk file is to state"
    )
    _reading(command, sides=False)
    _talking(command)
    _overwriting(command)


def _warp(commands: argparse._SubParsersAction) -> None:
    command = _command(commands, "warp", "warp an image of the moving space onto the fixed one")
    command.add_argument(
        "result", type=Path, metavar="DIR", help="folder that `kunita register` wrote"
    )
    command.add_argument("image", type=Path, metavar="IMAGE", help="an image of the moving space")
    command.add_argument("--out", type=Path, required=True, metavar="FILE", help="where to write")
    command.add_argument(
        "--reference",
        type=Path,
        metavar="IMG",
        help="whose grid to use (default: that of the registered image)",
    )
    ways = command.add_mutually_exclusive_group()
    ways.add_argument(
        "--nearest", action="store_true", help="nearest voxel, for labels (default: linear)"
    )
    ways.add_argument("--cubic", action="store_true", help="cubic splines")
    command.add_argument(
        "--inverse",
        action="store_true",
        help="warp an image of the fixed space onto the moving one",
    )
    command.add_argument(
        "--spacing", type=_numbers, metavar="S", help="pixel spacing of pictures, mm (default: 1)"
    )
    _talking(command)
    _overwriting(command)


def _uncertainty(commands: argparse._SubParsersAction) -> None:
    command = _command(
        commands, "uncertainty", "map how sure the registration is, on the grid of an image"
    )
    command.add_argument(
        "result", type=Path, metavar="DIR", help="folder that `kunita register` wrote"
    )
    command.add_argument(
        "--reference",
        type=Path,
        metavar="IMG",
        help="an image of the fixed space (default: the registered one)",
    )
    command.add_argument("--out", type=Path, required=True, metavar="FILE", help="where to write")
    command.add_argument(
        "--what",
        choices=MAPS,
        default="fc",
        help="fc: Frobenius norm of the covariance, mm² (default); std, mm; radius of the 95 %% ball, mm; "
        "cov: xx yx yy zx zy zz, LPS; jacobian: determinant",
    )
    command.add_argument(
        "--spacing", type=_numbers, metavar="S", help="pixel spacing of pictures, mm (default: 1)"
    )
    _talking(command)
    _overwriting(command)


def _suggest(commands: argparse._SubParsersAction) -> None:
    command = _command(
        commands,
        "suggest",
        "say where one more landmark would lower the uncertainty most",
        "\nThe three best places, each given those before it, and what they are worth: the mean 95 % radius over a\n"
        "region, before and after. The region is the convex hull of the moving landmarks, or inside LABELS. A place\n"
        "may be anywhere in the hull or inside the labels. Nothing is written unless --out or --figure is given.",
    )
    command.add_argument(
        "result", type=Path, metavar="DIR", help="folder that `kunita register` wrote"
    )
    command.add_argument(
        "--inside", type=Path, metavar="LABELS", help="where to be sure: labels in the moving space"
    )
    command.add_argument(
        "--label", type=int, metavar="N", help="one value of LABELS (default: every one but 0)"
    )
    command.add_argument(
        "--noise", type=_positive, metavar="MM", help="sd of a new mark (default: a typical one's)"
    )
    command.add_argument(
        "--out", type=Path, metavar="FILE", help="write the places as landmarks of the moving space"
    )
    command.add_argument(
        "--figure", type=Path, metavar="FILE.png", help="draw region, landmarks and places"
    )
    command.add_argument(
        "--spacing", type=_numbers, metavar="S", help="pixel spacing of pictures, mm (default: 1)"
    )
    _talking(command)
    _overwriting(command)


def _pool(commands: argparse._SubParsersAction) -> None:
    command = _command(
        commands,
        "pool",
        "merge several raters' files into one with covariances",
        "\nRobust means; covariances shrunk towards the one that all landmarks share.",
    )
    command.add_argument(
        "files", type=Path, nargs="+", metavar="FILES", help="one landmark file per rater"
    )
    command.add_argument(
        "--out", type=Path, required=True, metavar="FILE", help=".mrk.json, .csv or .tsv"
    )
    command.add_argument(
        "--spread",
        choices=("mean", "rater"),
        default="mean",
        help="covariance of the pooled point (default), or of a single rater",
    )
    _reading(command, sides=False)
    _talking(command)
    _overwriting(command)


def _convert(commands: argparse._SubParsersAction) -> None:
    command = _command(
        commands, "convert", "convert landmarks, images, meshes or streamlines between formats"
    )
    command.add_argument("input", type=Path, metavar="IN")
    command.add_argument("out", type=Path, metavar="OUT", help="its suffix says the format")
    command.add_argument(
        "--from", dest="origin", metavar="F", help="frame (RAS, LPS, IMAGE) or format of the input"
    )
    command.add_argument(
        "--reference", type=Path, metavar="IMG", help="image whose grid a .trk file is to state"
    )
    command.add_argument(
        "--to", dest="goal", metavar="F", help="frame or format of the output (such as ants)"
    )
    _reading(command, sides=False)
    _talking(command)
    _overwriting(command)


def _info(commands: argparse._SubParsersAction) -> None:
    command = _command(
        commands, "info", "say what a file is: landmarks, image, mesh, streamlines or registration"
    )
    command.add_argument("file", type=Path, metavar="FILE")
    _reading(command, sides=False)
    _talking(command)


def _tune(commands: argparse._SubParsersAction) -> None:
    command = _command(
        commands,
        "tune",
        "learn one prior (kernel and noise) on many cases, for others",
        "\nThe summed evidence of all cases is maximised, with weakly informative priors on the parameters.\n"
        "Use the result with `kunita register … --prior prior.json`: learn on other patients, apply to this one.",
    )
    _cohort(command)
    command.add_argument(
        "--out", type=Path, required=True, metavar="prior.json", help="where to write"
    )
    command.add_argument(
        "--kernel",
        choices=(*KERNELS, "best"),
        default="gaussian",
        help="family (default: gaussian); best: try all",
    )
    command.add_argument(
        "--scales", type=_count, default=1, metavar="N", help="length scales to sum (default: 1)"
    )
    command.add_argument(
        "--align",
        choices=ALIGNMENTS,
        default="rigid",
        help="alignment in the model (default: rigid)",
    )
    command.add_argument(
        "--model", choices=MODELS, default="endpoint", help="posterior (default: endpoint)"
    )
    command.add_argument(
        "--scale-noise",
        action="store_true",
        help="learn a factor on the noise that the files bring",
    )
    command.add_argument("--no-report", action="store_true", help="no page about it (prior.html)")
    _talking(command)
    _overwriting(command)


def _loo(commands: argparse._SubParsersAction) -> None:
    command = _command(
        commands,
        "loo",
        "leave out each landmark of a cohort and see how well, and how honestly, it is predicted",
        "\nKernel and noise are learned on the other patients (with fewer than three cases: on the case itself).\n"
        "In the same table: no registration, rigid, affine, thin-plate spline, small deformation, the paper's setting.",
    )
    _cohort(command)
    command.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="folder for tables and figures"
    )
    command.add_argument(
        "--length-scales", type=_numbers, metavar="MM,…", help="also try these, the rest learned"
    )
    command.add_argument(
        "--prior",
        type=Path,
        metavar="prior.json",
        help="use this prior for all cases, learn nothing",
    )
    command.add_argument(
        "--kernel", choices=(*KERNELS, "best"), help="family (default: gaussian); best: try all"
    )
    command.add_argument(
        "--scales", type=_count, metavar="N", help="length scales to sum (default: 1)"
    )
    command.add_argument(
        "--align", choices=ALIGNMENTS, help="alignment in the model (default: rigid)"
    )
    noise = command.add_mutually_exclusive_group()
    noise.add_argument(
        "--common-noise",
        action="store_true",
        help="pass over covariances in files: learn one noise",
    )
    noise.add_argument(
        "--scale-noise",
        action="store_true",
        help="learn one factor on the noise that the files bring",
    )
    command.add_argument(
        "--fast",
        action="store_true",
        help="in closed form, to first order, instead of exact refits",
    )
    command.add_argument(
        "--workers", type=_count, default=1, metavar="N", help="processes (default: 1)"
    )
    command.add_argument(
        "--seed",
        type=_seed,
        default=0,
        metavar="N",
        help="of the bootstrap over cases (default: 0)",
    )
    command.add_argument("--no-report", action="store_true", help="no report.html")
    _talking(command)
    _overwriting(command)


def _cohort(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "cases",
        type=Path,
        metavar="CASES.tsv",
        help="tab-separated: case, moving, fixed (empty for a two-volume .tag); raters' files separated by ';'",
    )
    command.add_argument(
        "--frame", choices=FRAMES, type=str.upper, help="axes of landmark files that do not say"
    )


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a positive whole number, found {text!r}")
    return int(text)


def _reproduce(commands: argparse._SubParsersAction) -> None:
    command = _command(
        commands,
        "reproduce",
        "repeat the experiments of the paper: tables (JSON, CSV) and figures (PNG, PDF)",
        "\nmoments: the flow's moments by simulation and by each closure. synthetic: circle to flower, small and\n"
        "diffeomorphic. clinical: leave-one-out over a cohort for a range of length scales. See docs/paper.md.",
    )
    command.add_argument("experiment", choices=(*EXPERIMENTS, "all"), help="which")
    command.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="folder for tables and figures"
    )
    command.add_argument(
        "--quick",
        action="store_true",
        help="a small version, about two minutes for all (the full one: 40)",
    )
    command.add_argument(
        "--cases",
        type=Path,
        metavar="CASES.tsv",
        help="clinical: a cohort of yours, tab-separated: case, moving, fixed (empty for a two-volume .tag) and "
        "optionally moving_image, fixed_image; raters' files separated by ';' (default: twelve generated cases)",
    )
    command.add_argument(
        "--frame", choices=FRAMES, type=str.upper, help="axes of landmark files that do not say"
    )
    command.add_argument(
        "--seed", type=_seed, default=0, metavar="N", help="of everything random (default: 0)"
    )
    _talking(command)
    _overwriting(command)


def _reading(command: argparse.ArgumentParser, *, sides: bool) -> None:
    group = command.add_argument_group("reading landmarks")
    group.add_argument(
        "--frame",
        choices=FRAMES,
        type=str.upper,
        help="axes of files that do not say; IMAGE: 2-D, x right, y down",
    )
    if sides:
        group.add_argument(
            "--moving-frame",
            choices=FRAMES,
            type=str.upper,
            help="the same, of the moving file only",
        )
        group.add_argument(
            "--fixed-frame", choices=FRAMES, type=str.upper, help="the same, of the fixed file only"
        )
        group.add_argument(
            "--volumes",
            type=_volumes,
            metavar="M,F",
            help="which volume of which file (default: 1,2)",
        )
    else:
        group.add_argument(
            "--volume", type=int, metavar="N", help="which volume of a file that has several"
        )
        group.add_argument(
            "--image", type=Path, metavar="IMG", help="image whose voxels index files count"
        )
    group.add_argument(
        "--spacing",
        type=_numbers,
        metavar="S",
        help="of pixels or voxels, mm; one number or x,y[,z]",
    )
    group.add_argument(
        "--format",
        metavar="NAME",
        help="where the file does not tell: mrk.json, fcsv, tag, ants, slicer-csv, birl, "
        "bigwarp, csv, tsv, tps, transformix, elastix, index",
    )
    group.add_argument(
        "--index-base", type=int, choices=(0, 1), help="number of the first voxel in index files"
    )
    group.add_argument(
        "--axis-order", default="xyz", metavar="ORDER", help="of index files (default: xyz)"
    )
    group.add_argument(
        "--flip",
        default="",
        metavar="AXES",
        help="axes that index files count backwards, such as z",
    )


def _talking(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--json", action="store_true", help="print the summary as JSON and nothing else"
    )
    command.add_argument("--quiet", action="store_true", help="print warnings and errors only")


def _overwriting(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--overwrite", action="store_true", help="replace what is there, once the new is complete"
    )


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"expected a positive number, found {text!r}")
    return value


def _seed(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(
            f"expected zero or a positive whole number, found {text!r}"
        )
    return int(text)


def _numbers(text: str) -> float | tuple[float, ...]:
    values = tuple(_positive(part) for part in text.split(","))
    return values[0] if len(values) == 1 else values


def _volumes(text: str) -> tuple[int, ...]:
    parts = text.split(",")
    if len(parts) != 2 or not all(part.strip().isdecimal() for part in parts):
        raise argparse.ArgumentTypeError(f"expected two numbers such as 2,1, found {text!r}")
    return tuple(int(part) for part in parts)
