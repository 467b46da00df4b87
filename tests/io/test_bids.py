"""A result under BIDS-derivatives names."""

import re
from pathlib import Path

import pytest

from kunita.errors import FileError
from kunita.io.bids import BidsNames, bids_names, dataset_description, sidecar
from kunita.results import Request, output_names

NAMES = bids_names(Path("raw/sub-01_ses-pre_T1w.nii.gz"), Path("raw/sub-01_ses-intraop_US.nii.gz"))
EVERYTHING = output_names(
    Request(
        moving_image=Path("m"), fixed_image=Path("f"), labels=Path("l"), targets_file=Path("t.csv"),
        covariance=True, nrrd=True, nifti_xfm=True, bids=NAMES,
    ),
    3,
)  # fmt: skip


def test_subject_session_and_suffix_come_from_the_user_s_own_names():
    assert BidsNames("01", "preT1w", "intraopUS", "T1w") == NAMES
    same = bids_names(Path("sub-7_T1w.nii"), Path("sub-7_T1w.nii.gz"))
    assert (same.moving, same.fixed) == ("T1wmoving", "T1wfixed")


@pytest.mark.parametrize("name", EVERYTHING)
def test_every_file_has_a_name_of_entities_below_its_subject_or_belongs_to_the_dataset(name):
    path = NAMES(name)
    if name in ("dataset_description.json", ".bidsignore"):
        assert path == name
    else:
        entities = r"sub-01(_[a-z]+-[0-9A-Za-z]+)+_[0-9A-Za-z_]+\.[a-z0-9.]+"
        assert re.fullmatch(rf"sub-01/xfm/{entities}", path)


def test_no_two_files_share_a_name_nor_do_two_subjects():
    other = bids_names(Path("sub-02_ses-pre_T1w.nii.gz"), Path("sub-02_ses-intraop_US.nii.gz"))
    own = [name for name in EVERYTHING if NAMES(name) != name]
    places = [names(name) for names in (NAMES, other) for name in own]
    assert len(set(places)) == len(places) == 2 * len(own)


@pytest.mark.parametrize(("name", "way"), [("forward_xfm", ("preT1w", "intraopUS")),
                                           ("inverse_xfm", ("intraopUS", "preT1w"))])  # fmt: skip
def test_a_transform_is_named_by_the_images_it_moves_and_its_sidecar_says_that_points_go_the_other_way(
    name, way
):
    a, b = way
    assert f"_from-{a}_to-{b}_mode-image_" in NAMES(f"{name}.h5")
    text = sidecar(f"{name}.h5", NAMES)
    assert (text["ImageMapping"], text["PointMapping"], text["CoordinateSystem"]) == (
        f"{a}->{b}",
        f"{b}->{a}",
        "LPS",
    )


@pytest.mark.parametrize(
    "name", [n for n in EVERYTHING if n.startswith(("uncertainty", "jacobian", "labels_"))]
)
def test_a_map_s_sidecar_states_its_unit_and_space(name):
    text = sidecar(name, NAMES)
    assert text["Space"] == "intraopUS"
    assert text["Units"] in ("mm", "mm2", "1")
    assert f"_space-{text['Space']}_" in NAMES(name)


def test_the_dataset_says_that_it_is_a_derivative_and_of_what():
    text = dataset_description()
    assert text["DatasetType"] == "derivative"
    assert text["GeneratedBy"][0]["Name"] == "kunita"
    assert {"Name", "BIDSVersion"} <= set(text)


@pytest.mark.parametrize(("moving", "fixed", "words"), [
    ("mri.nii.gz", "sub-1_US.nii.gz", "sub-01"), ("sub-1_T1w.nii", "sub-2_US.nii", "sub-1"),
    ("sub-_T1w.nii", "sub-1_US.nii", "BIDS"), ("sub-a.b_T1w.nii", "sub-1_US.nii", "sub-a"),
])  # fmt: skip
def test_names_without_a_common_subject_are_refused(moving, fixed, words):
    with pytest.raises(FileError, match=words):
        bids_names(Path(moving), Path(fixed))
