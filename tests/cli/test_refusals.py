"""Bad input: one clear line, exit 2, nothing half-written, what was there untouched."""

import gzip
import os

import nibabel
import numpy as np
import pytest

import kunita
from cli.cases import AFFINE, KERNEL, NAMES, SHAPE, contents, kunita_command, landmarks
from kunita.errors import ExitStatus


def write_bad_files(case, folder):
    """Everything that can be wrong with a file, each under a telling name."""
    moving, fixed = landmarks()
    (folder / "empty.csv").write_bytes(b"")
    (folder / "file").write_text("not a folder")
    (folder / "cut.mrk.json").write_bytes((case / "moving.mrk.json").read_bytes()[:900])
    (folder / "cut.tag").write_bytes((case / "both.tag").read_bytes()[:300])
    (folder / "cut.nii.gz").write_bytes((case / "fixed.nii.gz").read_bytes()[:3000])
    rows = "".join(
        f"{n},{x},{y},{z}\n" for n, (x, y, z) in zip("abcdefghijklmnop", moving.points, strict=True)
    )
    (folder / "no frame.csv").write_text(f"name,x,y,z\n{rows}")
    (folder / "flipped.csv").write_text((case / "moving.csv").read_text().replace("RAS", "LPS"))
    kunita.write_landmarks(
        folder / "others.csv", kunita.Landmarks(fixed.points, [f"other {name}" for name in NAMES])
    )
    kunita.write_landmarks(folder / "unnamed.csv", kunita.Landmarks(moving.points))
    kunita.write_landmarks(folder / "fewer.csv", kunita.Landmarks(fixed.points[:15]))
    kunita.write_landmarks(folder / "flat.csv", kunita.Landmarks(fixed.points[:, :2], NAMES))
    kunita.write_image(folder / "no labels.nii.gz", kunita.Image(np.zeros(SHAPE, np.uint8), AFFINE))
    kunita.write_image(folder / "flat.png", kunita.Image(np.zeros((9, 8), np.uint8), np.eye(3)))
    _write_header(folder / "huge.nii", (3000, 3000, 2000))
    (folder / "huge.nii.gz").write_bytes(gzip.compress((folder / "huge.nii").read_bytes()))
    _write_header(folder / "nowhere.nii", (4, 4, 4), srow_x=[np.nan] * 4)


def _write_header(path, shape, **fields):
    header = nibabel.Nifti1Header()
    header.set_data_shape(shape)
    header.set_data_dtype(np.float32)
    header.set_sform(np.eye(4), 1)
    for field, value in fields.items():
        header[field] = value
    path.write_bytes(header.binaryblock + b"\0" * 300)


@pytest.fixture(scope="module")
def bad(case, tmp_path_factory):
    folder = tmp_path_factory.mktemp("bad")
    write_bad_files(case, folder)
    return folder


SIDES = "{case}/moving.csv {case}/fixed.csv"
REFUSED = {
    "a file that is not there": ("register {bad}/absent.csv {case}/fixed.csv --out {out}", ["absent.csv", "no such"]),
    "an empty file": ("register {bad}/empty.csv {case}/fixed.csv --out {out}", ["empty.csv", "empty file"]),
    "a truncated markups file": ("register {bad}/cut.mrk.json {case}/fixed.csv --out {out}", ["cut.mrk.json:", "JSON"]),
    "a truncated tag file": ("register {bad}/cut.tag --out {out}", ["cut.tag:", "expected"]),
    "no frame": ("register {bad}/no-frame.csv {case}/fixed.csv --out {out}", ["no frame.csv", "--frame RAS"]),
    "the wrong frame": (
        "register {bad}/flipped.csv {case}/fixed.csv --moving-image {case}/moving.nii.gz --out {out}",
        ["moving: 16 of 16", "look like RAS", "correct the file, which states LPS"],
    ),
    "a truncated image": (f"register {SIDES} --fixed-image {{bad}}/cut.nii.gz --out {{out}}", ["cut.nii.gz"]),
    "a header of 72 GB": (f"register {SIDES} --fixed-image {{bad}}/huge.nii --out {{out}}", ["72000000000", "huge"]),
    "the same, compressed": (f"register {SIDES} --fixed-image {{bad}}/huge.nii.gz --out {{out}}", ["72000000000"]),
    "an affine with NaN": (f"register {SIDES} --moving-image {{bad}}/nowhere.nii --out {{out}}", ["affine", "finite"]),
    "labels without a grid": (f"register {SIDES} --labels {{case}}/labels.nii.gz --out {{out}}", ["--fixed-image"]),
    "no label in the labels": (
        f"register {SIDES} --labels {{bad}}/no-labels.nii.gz --fixed-image {{case}}/fixed.nii.gz --out {{out}}",
        ["labels", "found 0"],
    ),
    "an image of another dimension": (f"register {SIDES} --fixed-image {{bad}}/flat.png --out {{out}}", ["2-D", "3-D"]),
    "landmarks of two dimensions": ("register {case}/moving.csv {bad}/flat.csv --out {out}", ["2-D", "3-D"]),
    "unequal counts": ("register {bad}/unnamed.csv {bad}/fewer.csv --out {out}", ["16 moving and 15 fixed"]),
    "no common name": ("register {case}/moving.csv {bad}/others.csv --out {out}", ["no common names"]),
    "one side only": ("register {case}/moving.csv --out {out}", ["second file", "found 1 volume"]),
    "targets of another dimension": (f"register {SIDES} --targets {{bad}}/flat.csv --out {{out}}", ["flat.csv", "3-D"]),
    "targets that are not there": (f"register {SIDES} --targets {{bad}}/absent.csv --out {{out}}", ["absent.csv"]),
    "an unknown kernel": (f"register {SIDES} --kernel cosine --out {{out}}", ["--kernel", "gaussian", "cosine"]),
    "negative noise": (f"register {SIDES} --noise -1 --out {{out}}", ["--noise", "positive", "-1"]),
    "a length scale of zero": (f"register {SIDES} --length-scale 0 --out {{out}}", ["--length-scale", "positive"]),
    "an unknown format": (f"register {SIDES} --format xml --out {{out}}", ["format", "mrk.json", "xml"]),
    "volumes that are not numbers": ("register {case}/both.tag --volumes a,b --out {out}", ["--volumes", "a,b"]),
    "a volume that is not there": ("register {case}/both.tag --volumes 1,3 --out {out}", ["1,3", "found 2 volume"]),
    "a file in place of the folder": (f"register {SIDES} --out {{bad}}/file", ["bad", "file", "folder"]),
    "a folder below a file": (f"register {SIDES} --out {{bad}}/file/deep/er", ["file is a file"]),
    "no BIDS name": (f"register {SIDES} --bids --out {{out}}", ["moving.csv", "sub-01"]),
    "nothing out": (f"register {SIDES}", ["--out"]),
    "no command": ("", ["COMMAND"]),
    "not a registration": ("predict {case} {case}/moving.csv --out {out}.csv", ["registration.h5", "found none"]),
    "another file for a record": ("predict {result}/forward_xfm.h5 {case}/moving.csv --out {out}.csv", ["forward_xfm"]),
    "points of another dimension": ("predict {result} {bad}/flat.csv --out {out}.csv", ["flat.csv", "3-D", "2-D"]),
    "an unknown suffix for points": ("predict {result} {case}/moving.csv --out {out}.doc", ["mrk.json", ".doc"]),
    "a folder that is not there": ("predict {result} {case}/moving.csv --out {out}/deep/p.csv", ["does not exist"]),
    "a flat reference": (
        "warp {result} {case}/moving.nii.gz --reference {bad}/flat.png --out {out}.nii.gz", ["flat.png", "3-D", "2-D"],
    ),
    "a flat image": ("warp {result} {bad}/flat.png --out {out}.nii.gz", ["flat.png", "3-D", "2-D"]),
    "a picture of a volume": ("warp {result} {case}/moving.nii.gz --out {out}.png", [".nii.gz", ".png"]),
    "a flat map": ("uncertainty {result} --reference {bad}/flat.png --out {out}.nii.gz", ["flat.png", "3-D", "2-D"]),
    "covariances as NRRD": (
        "uncertainty {result} --what cov --reference {case}/fixed.nii.gz --out {out}.nrrd", [".nii.gz", ".nrrd"],
    ),
    "an unknown map": ("uncertainty {result} --what mood --reference {bad}/x --out {out}.nii", ["--what", "radius"]),
    "one rater": ("pool {case}/moving.csv --out {out}.csv", ["two raters"]),
    "raters of different landmarks": ("pool {case}/moving.csv {bad}/others.csv --out {out}.csv", ["names"]),
    "two volumes in one markup": ("convert {case}/both.tag {out}.mrk.json", ["has 2 sets", "--volume"]),
    "an unknown frame": ("convert {case}/moving.csv {out}.csv --to XYZ", ["--to", "RAS", "XYZ"]),
    "an image as landmarks": ("register {case}/moving.nii.gz {case}/fixed.csv --out {out}", ["this is an image"]),
    "landmarks as an image": ("convert {case}/moving.csv {out}.nii.gz", ["mrk.json"]),
    "info on nothing": ("info {bad}/absent", ["absent", "no such file"]),
    "info on something else": ("info {result}/overview.png/x", ["no such file"]),
}  # fmt: skip


@pytest.mark.parametrize(("command", "words"), REFUSED.values(), ids=REFUSED)
def test_bad_input_is_refused_in_one_line_and_leaves_nothing(
    command, words, case, bad, result, tmp_path
):
    places = {"case": case, "bad": bad, "result": result, "out": tmp_path / "out"}
    before = [contents(place) for place in (case, bad, result)]
    kernel = (
        KERNEL
        if command.startswith("register") and "--noise" not in command and "--length" not in command
        else ()
    )
    names = {"no-frame.csv": "no frame.csv", "no-labels.nii.gz": "no labels.nii.gz"}
    typed = [part.format(**places) for part in command.split()]
    for dashed, spaced in names.items():
        typed = [part.replace(dashed, spaced) for part in typed]
    ended = kunita_command(*typed, *kernel, *(("--quiet",) if typed else ()))
    assert ended.status == ExitStatus.REFUSED
    assert ended.out == ""
    assert ended.err.startswith("kunita: error: ")
    assert ended.err.count("\n") == 1
    assert [word for word in words if word not in ended.err] == []
    assert list(tmp_path.iterdir()) == []
    assert [contents(place) for place in (case, bad, result)] == before


def test_an_existing_result_is_replaced_only_on_request(case, result):
    before = contents(result)
    ended = kunita_command("register", case / "both.tag", "--out", result, *KERNEL)
    assert ended.status == ExitStatus.REFUSED
    assert "--overwrite" in ended.err
    assert contents(result) == before


@pytest.mark.parametrize(
    "command",
    [
        "predict {result} {case}/moving.csv --out {out}.csv",
        "warp {result} {case}/moving.nii.gz --out {out}.nii.gz",
        "uncertainty {result} --reference {case}/fixed.nii.gz --out {out}.nii.gz",
        "pool {case}/moving.csv {case}/fixed.csv --out {out}.csv",
        "convert {case}/moving.csv {out}.csv",
    ],
)
def test_an_existing_file_is_replaced_only_on_request(command, case, result, tmp_path):
    typed = [
        part.format(case=case, result=result, out=tmp_path / "out") for part in command.split()
    ]
    place = tmp_path / f"out{'.csv' if '.csv' in typed[-1] else '.nii.gz'}"
    place.write_text("precious")
    refused = kunita_command(*typed)
    assert (refused.status, refused.out, place.read_text()) == (ExitStatus.REFUSED, "", "precious")
    assert "--overwrite" in refused.err
    assert kunita_command(*typed, "--overwrite").status == 0
    assert place.read_bytes() != b"precious"
    assert list(tmp_path.iterdir()) == [place]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission_is_refused(case, tmp_path):
    tmp_path.chmod(0o500)
    try:
        ended = kunita_command(
            "register", case / "both.tag", "--out", tmp_path / "r", *KERNEL, "--quiet"
        )
    finally:
        tmp_path.chmod(0o700)
    assert ended.status == ExitStatus.REFUSED
    assert "cannot be written to" in ended.err


def test_one_landmark_is_accepted_with_a_warning(tmp_path):
    moving, fixed = landmarks()
    for name, side in (("m.csv", moving), ("f.csv", fixed)):
        kunita.write_landmarks(tmp_path / name, side.take([0]))
    ended = kunita_command(
        "register", tmp_path / "m.csv", tmp_path / "f.csv", "--out", tmp_path / "r", *KERNEL
    )
    assert ended.status == 0
    assert "single landmark" in ended.err
