"""One case as the files that a user has, and one result of it, for all tests of the command line in
a process."""

import pytest

from cli.cases import KERNEL, Ended, kunita_command, write_case


@pytest.fixture(scope="session")
def case(tmp_path_factory):
    """The folder with the user's files."""
    folder = tmp_path_factory.mktemp("case")
    write_case(folder)
    return folder


@pytest.fixture(scope="session")
def registered(case, tmp_path_factory):
    """A result with everything in it, and how the command ended; tests leave it as it is."""
    out = tmp_path_factory.mktemp("results") / "result"
    ended = kunita_command(
        "register", case / "moving.mrk.json", case / "fixed.mrk.json", "--out", out, *KERNEL,
        "--moving-image", case / "moving.nii.gz", "--fixed-image", case / "fixed.nii.gz",
        "--labels", case / "labels.nii.gz", "--targets", case / "targets.csv",
        "--cov", "--nrrd", "--nifti-xfm", "--json",
    )  # fmt: skip
    assert ended.status == 0, ended.err
    return out, ended


@pytest.fixture(scope="session")
def result(registered) -> str:
    return registered[0]


@pytest.fixture(scope="session")
def ended(registered) -> Ended:
    return registered[1]
