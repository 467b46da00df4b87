"""What the documents name is there."""

import ast
import importlib
import pathlib
import re

import pytest

import kunita

ROOT = pathlib.Path(__file__).parents[1]
EQUATIONS = (ROOT / "docs" / "equations.md").read_text(encoding="utf-8")

LABELS = (
    "eq:bayes-reg", "eq:KL-approach", "eq:KL-approach-entropy", "eq:long-diff", "eq:minimal-v", "prop:v-gp", "eq:v-gp",
    "prop:sde", "eq:prop-sde", "eq:prop-sde-wiener", "prop:sde-gp", "eq:phi-de-param", "eq:phi-de-param-mean",
    "eq:phi-de-param-2ndm", "eq:prop-gp-approx", "eq:v-prior-cont", "eq:log-p-gauss", "eq:approx-vs", "eq:approx-ss",
    "eq:phi-ll", "eq:phi-ll-cts", "eq:phi-ll-mean", "eq:phi-ll-2ndm", "eq:disc-KL-approach",
    "eq:disc-KL-approach-momenta", "eq:disc-KL-data", "eq:disc-KL-approach-update", "eq:cov-fun",
)  # fmt: skip
"""Every labelled equation and proposition of [wassermann:14], in its order."""

STATUSES = ("implemented", "used as definition only", "not used")


def named(pattern):
    """Everything in backticks that matches, once each."""
    return sorted(set(re.findall(rf"`({pattern})`", EQUATIONS)))


def rows():
    """The rows of the tables that have a status: label, what it says, function, test, status."""
    cells = (
        [cell.strip() for cell in line.strip("|").split("|")] for line in EQUATIONS.splitlines() if line[:1] == "|"
    )
    return [row for row in cells if len(row) == 5 and row[0] != "label" and not row[0].startswith("---")]


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
        r"^version: *[\"']?([^\"'\s]+)", (ROOT / "CITATION.cff").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert found == [kunita.__version__]


def test_every_name_in_notation_is_in_the_code():
    source = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    words = set(re.findall(r"\w+", source))
    table = [line.split("|") for line in (ROOT / "docs" / "notation.md").read_text(encoding="utf-8").splitlines()]
    names = [name for cells in table if len(cells) > 3 for name in re.findall(r"`([\w.]+)", cells[2])]
    assert len(names) > 30
    missing = [name for name in names if not set(name.strip(".").split(".")) <= words]
    assert not missing
