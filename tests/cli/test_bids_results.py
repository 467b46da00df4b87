"""Results under BIDS names: two subjects share a root, and each is found in it."""

import json
import shutil

import pytest

from cli.cases import KERNEL, contents, kunita_command


@pytest.fixture(scope="module")
def root(case, tmp_path_factory):
    """A derivative of two subjects."""
    raw, root = tmp_path_factory.mktemp("raw"), tmp_path_factory.mktemp("bids") / "derivatives"
    for subject in ("01", "02"):
        for side, end in (("moving", "ses-pre_T1w"), ("fixed", "ses-post_US")):
            shutil.copy(case / f"{side}.nii.gz", raw / f"sub-{subject}_{end}.nii.gz")
        images = (raw / f"sub-{subject}_{end}.nii.gz" for end in ("ses-pre_T1w", "ses-post_US"))
        sides = (
            "register",
            case / "moving.csv",
            case / "fixed.csv",
            "--out",
            root,
            "--bids",
            "--nrrd",
            "--no-report",
        )
        moving, fixed = images
        ended = kunita_command(*sides, "--moving-image", moving, "--fixed-image", fixed, *KERNEL)
        assert ended.status == 0, ended.err
    return root


def test_subjects_have_the_same_files_and_the_dataset_describes_itself_once(root):
    first, second = ({n.replace(s, "") for n in contents(root / s)} for s in ("sub-01", "sub-02"))
    assert first == second
    assert {path.name for path in root.iterdir()} == {
        "sub-01",
        "sub-02",
        "dataset_description.json",
        ".bidsignore",
    }
    assert (
        json.loads((root / "dataset_description.json").read_text())["DatasetType"] == "derivative"
    )


def test_every_image_and_transform_has_one_sidecar(root):
    names = set(contents(root / "sub-01" / "xfm"))
    stems = {
        name.partition(".")[0] for name in names if name.endswith((".nii.gz", "xfm.h5", "xfm.nrrd"))
    }
    assert {f"{stem}.json" for stem in stems} <= names
    assert any(name.endswith("_xfm.nrrd") for name in names)


def test_the_summary_lists_the_files_that_are_there(root):
    (summary,) = root.glob("sub-01/xfm/*_summary.json")
    listed = set(json.loads(summary.read_text())["files"])
    assert listed == {f"sub-01/{name}" for name in contents(root / "sub-01")}


def test_a_subject_s_record_is_found_and_two_are_not_confused(root, case, tmp_path):
    words = (case / "moving.csv", "--out", tmp_path / "p.csv")
    assert kunita_command("predict", root / "sub-01", *words).status == 0
    several = kunita_command("predict", root, *words, "--overwrite")
    assert several.status == 2
    assert "sub-01" in several.err
    assert "sub-02" in several.err
    warped = kunita_command(
        "warp", root / "sub-02", case / "moving.nii.gz", "--out", tmp_path / "w.nii.gz"
    )
    assert warped.status == 0  # onto the grid that this subject's summary remembers
