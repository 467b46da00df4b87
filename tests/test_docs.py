"""What the documents name is there."""

import ast
import importlib
import pathlib
import re
import shlex
import tomllib

import pytest

import kunita
from kunita.arguments import parser
from kunita.errors import ExitStatus
from kunita.io.bids import bids_names
from kunita.io.geometry_files.files import SUFFIXES
from kunita.io.image_files import files as image_files
from kunita.io.landmark_files.files import FORMATS, read_tables
from kunita.io.landmark_files.table import STATED
from kunita.results import Request, output_names

ROOT = pathlib.Path(__file__).parents[1]
EQUATIONS = (ROOT / "docs" / "equations.md").read_text(encoding="utf-8")
FILES = (ROOT / "docs" / "files.md").read_text(encoding="utf-8")
PAPER = (ROOT / "docs" / "paper.md").read_text(encoding="utf-8")
MORE = "".join(
    (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    for page in ("targets", "loo", "uncertainty")
)
README = (ROOT / "README.md").read_text(encoding="utf-8")
DEPENDENCIES = (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8")

LABELS = (
    "eq:bayes-reg", "eq:KL-approach", "eq:KL-approach-entropy", "eq:long-diff", "eq:minimal-v", "prop:v-gp", "eq:v-gp",
    "prop:sde", "eq:prop-sde", "eq:prop-sde-wiener", "prop:sde-gp", "eq:phi-de-param", "eq:phi-de-param-mean",
    "eq:phi-de-param-2ndm", "eq:prop-gp-approx", "eq:v-prior-cont", "eq:log-p-gauss", "eq:approx-vs", "eq:approx-ss",
    "eq:phi-ll", "eq:phi-ll-cts", "eq:phi-ll-mean", "eq:phi-ll-2ndm", "eq:disc-KL-approach",
    "eq:disc-KL-approach-momenta", "eq:disc-KL-data", "eq:disc-KL-approach-update", "eq:cov-fun",
)  # fmt: skip
"""Every labelled equation and proposition of [wassermann:14], in its order."""

IMAGES = (
    *image_files.NIFTI,
    *image_files.MINC,
    *image_files.NRRD,
    *image_files.META,
    *image_files.PICTURES,
)
"""Every suffix of an image."""

STATUSES = ("implemented", "used as definition only", "not used")


def named(pattern):
    """Everything in backticks that matches, once each."""
    return sorted(set(re.findall(rf"`({pattern})`", EQUATIONS)))


def rows():
    """The rows of the tables that have a status: label, what it says, function, test, status."""
    cells = (
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in EQUATIONS.splitlines()
        if line[:1] == "|"
    )
    return [
        row for row in cells if len(row) == 5 and row[0] != "label" and not row[0].startswith("---")
    ]


def resolve(dotted):
    """The object behind a dotted name: the longest module, then attributes."""
    parts = dotted.split(".")
    for end in range(len(parts), 0, -1):
        module = ".".join(parts[:end])
        try:
            found = importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name != module and not module.startswith(f"{error.name}."):
                raise
            continue
        for name in parts[end:]:
            found = getattr(found, name)
        return found
    raise ModuleNotFoundError(dotted)


@pytest.mark.parametrize("dotted", named(r"kunita\.[\w.]+"))
def test_every_function_named_in_equations_exists(dotted):
    assert resolve(dotted) is not None


@pytest.mark.parametrize("test", named(r"tests/[\w/]+\.py::\w+"))
def test_every_test_named_in_equations_exists(test):
    path, name = test.split("::")
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_equations_names_functions_and_tests():
    """So that a change of format does not make the two tests above pass on nothing."""
    assert len(named(r"kunita\.[\w.]+")) > 30
    assert len(named(r"tests/[\w/]+\.py::\w+")) > 30
    assert EQUATIONS.count("::") == len(re.findall(r"`tests/[\w/]+\.py::\w+`", EQUATIONS))


@pytest.mark.parametrize("label", LABELS)
def test_every_equation_of_the_paper_has_exactly_one_row(label):
    assert [row[0] for row in rows()].count(f"`{label}`") == 1


def test_every_row_says_its_status_and_what_is_implemented_names_its_test():
    for label, _, function, test, status in rows():
        assert status.startswith(STATUSES), label
        if status.startswith("implemented"):
            assert "`kunita." in function, label
            assert "`tests/" in test, label


def test_labels_cited_in_the_source_are_labels_of_the_paper():
    for path in pathlib.Path(kunita.__file__).parent.rglob("*.py"):
        cited = set(re.findall(r"`((?:eq|prop):[\w-]+)`", path.read_text(encoding="utf-8")))
        assert cited <= set(LABELS), path.name


def test_the_citation_has_the_version_of_the_package():
    found = re.findall(
        r"^version: *[\"']?([^\"'\s]+)",
        (ROOT / "CITATION.cff").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    assert found == [kunita.__version__]


def test_every_name_in_notation_is_in_the_code():
    source = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    words = set(re.findall(r"\w+", source))
    table = [
        line.split("|")
        for line in (ROOT / "docs" / "notation.md").read_text(encoding="utf-8").splitlines()
    ]
    names = [
        name for cells in table if len(cells) > 3 for name in re.findall(r"`([\w.]+)", cells[2])
    ]
    assert len(names) > 30
    missing = [name for name in names if not set(name.strip(".").split(".")) <= words]
    assert not missing


def blocks(*languages):
    """The fenced blocks of the pages and of the README that are in one of these languages."""
    return re.findall(
        rf"^```(?:{'|'.join(languages)})\n(.*?)^```",
        FILES + PAPER + MORE + README,
        re.MULTILINE | re.DOTALL,
    )


def commands():
    """Every command line on the pages and in the README, continued lines as one."""
    lines = [
        line
        for block in blocks("console", "sh")
        for line in block.replace("\\\n", " ").splitlines()
    ]
    return [line for line in lines if not line.startswith("python benchmarks/")]


def written_names(dimension):
    """Every file that `register` can write."""
    image = pathlib.Path("sub-01_T1w.nii.gz")
    return output_names(
        Request(
            moving_image=image, fixed_image=image, labels=image, targets_file=pathlib.Path("points.csv"),
            covariance=True, nrrd=True, nifti_xfm=True, bids=bids_names(image, image),
        ),
        dimension,
    )  # fmt: skip


@pytest.mark.parametrize("line", commands())
def test_every_command_on_the_page_is_accepted(line):
    program, *words = shlex.split(line, comments=True)
    assert program == "kunita"
    assert parser().parse_args(words).command == words[0]


def test_every_benchmark_on_the_pages_is_there():
    named = re.findall(
        r"benchmarks/\w+\.py",
        "".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs").glob("*.md")),
    )
    assert len(named) > 2
    assert [name for name in named if not (ROOT / name).is_file()] == []


def test_every_picture_of_the_pages_is_there():
    pictures = [(page.parent, found) for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md"))
                for found in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", page.read_text(encoding="utf-8"))]  # fmt: skip
    assert len(pictures) > 10
    assert [found for folder, found in pictures if not (folder / found).is_file()] == []


def test_the_pages_show_every_command_that_takes_files():
    shown = {shlex.split(line, comments=True)[1] for line in commands()}
    assert shown >= {
        "register",
        "predict",
        "warp",
        "uncertainty",
        "pool",
        "convert",
        "info",
        "reproduce",
    }
    assert shown >= {"suggest", "tune", "loo"}


@pytest.mark.parametrize("table", blocks("csv"))
def test_every_table_on_the_page_is_a_landmark_file_that_states_its_frame(table, tmp_path):
    path = tmp_path / "landmarks.csv"
    path.write_text(table, encoding="utf-8")
    (found,) = read_tables(path)
    assert found.stated == STATED
    assert found.names_problem is None
    assert len(found) == len(table.splitlines()) - 2


def test_the_tables_on_the_page_are_of_both_dimensions_with_and_without_covariances():
    """So that a change of format does not make the test above pass on nothing."""
    headers = [table.splitlines()[1] for table in blocks("csv")]
    assert {("z" in header.split(","), "cov_xx" in header) for header in headers} >= {
        (True, True),
        (False, True),
        (False, False),
    }


@pytest.mark.parametrize("name", FORMATS)
def test_every_landmark_format_has_exactly_one_row(name):
    assert len(re.findall(rf"^\| `{re.escape(name)}` \|", FILES, re.MULTILINE)) == 1


@pytest.mark.parametrize("name", written_names(3))
def test_every_file_that_register_writes_is_on_the_page(name):
    assert f"`{name}`" in FILES


def test_files_that_are_not_written_in_3d_are_on_the_page_by_their_suffix():
    for name in set(written_names(2)) - set(written_names(3)):
        stem, suffix = name.split(".")
        assert f"`{name}`" in FILES or (suffix == "tif" and f"`{stem}.nii.gz`" in FILES)


@pytest.mark.parametrize("suffix", [*IMAGES, *SUFFIXES])
def test_every_suffix_of_images_meshes_and_streamlines_is_on_the_page(suffix):
    assert re.search(rf"^\|.*`{re.escape(suffix)}`", FILES, re.MULTILINE)


@pytest.mark.parametrize("status", ExitStatus)
def test_every_exit_status_is_on_the_page(status):
    assert re.search(rf"^\| {status.value} \|", FILES, re.MULTILINE)


def test_every_option_named_on_the_page_exists():
    source = (pathlib.Path(kunita.__file__).parent / "arguments.py").read_text(encoding="utf-8")
    named_options = set(re.findall(r"`(--[a-z-]+)", FILES))
    assert len(named_options) > 15
    assert {option for option in named_options if f'"{option}"' not in source} == set()


def test_every_dependency_has_its_reason():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed = [*project["dependencies"], *project["optional-dependencies"]["test"]]
    packages = {re.split(r"[<>=~!;\[ ]", requirement)[0] for requirement in needed}
    cells = re.findall(r"^\| ([\w, -]+) \|", DEPENDENCIES, re.MULTILINE)
    explained = {name for cell in cells for name in cell.split(", ")} - {"package"}
    assert explained == packages
