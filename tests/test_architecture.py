"""The tree is the data flow: imports point one way, names are public once, importing costs nothing,
and the core can be read."""

import ast
import functools
import graphlib
import pathlib
import re
import subprocess
import sys

import pytest

import kunita
import style

SOURCE = pathlib.Path(kunita.__file__).parent

ORDER = (
    # the model, from arrays to arrays
    "errors", "jaxrun", "numerics", "splines", "smoothing", "kernels", "flow", "observations", "gaussians", "inference",
    "evaluation", "posterior", "image_posterior", "scores", "suspects",
    # data, and the door where it meets the model
    "data", "prealignment", "prior", "checks", "image_checks", "fitting", "image_record", "facts",
    "record", "image_remarks",
    # what is made of a registration
    "phantoms", "outputs", "io",
    # to register, which reads a transform where the path of one is given
    "image_registration", "registration",
    "figures", "cohort", "experiments", "report", "notebook",
    # the command line
    "console", "results", "arguments", "inputs", "from_images", "inspection", "commands", "demo", "reproduce",
    "suggest", "tune", "loo", "cli",
)  # fmt: skip
"""The layers in the order of the data flow, folders and top-level modules: each may import only
those before it, and within a folder imports make no cycle."""

AGAINST_THE_ORDER = set()
"""Imports that point down the flow. This list may only shrink."""

OF_LANDMARKS = ("fixed", "targets", "noise", "fixed_noise", "moving_noise")
"""What only landmarks have: other observations have no targets and another noise."""

CORE_LIMITS = {
    "nodes_per_line": 12,
    "nodes_per_function": 50,
    "tuples_per_1000": 4,
    "columns": 85,
    "columns_with_docstrings": 85,
}
"""What the style figures of the core may be at most; `style.py` defines them."""

LARGE_IN_THE_SHELL = {
    "arguments._register": 336,
    "cohort.study_tables.case_row": 266,
    "cohort.study_tables.method_row": 281,
    "commands._target_table": 269,
    "commands.convert": 400,
    "commands.pool": 286,
    "commands.predict": 392,
    "commands.register": 412,
    "experiments.clinical.clinical": 408,
    "experiments.clinical_pictures.plates_of": 355,
    "experiments.clinical_tables.prior_row": 378,
    "experiments.moments.closure_row": 257,
    "experiments.synthetic._rows": 261,
    "experiments.synthetic.synthetic": 278,
    "figures.clinical.before_and_after": 328,
    "figures.clinical.box_plots": 268,
    "figures.clinical.calibration": 341,
    "figures.clinical.slice_through": 278,
    "figures.clinical.smoothing": 386,
    "figures.cohort.case_coverage": 349,
    "figures.cohort.case_errors": 426,
    "figures.moments._closures": 310,
    "figures.moments.arrivals": 367,
    "figures.moments.closure_errors": 284,
    "figures.moments.errors_against_paths": 356,
    "figures.overview._dots": 262,
    "figures.overview.overview": 333,
    "figures.registration._error_rows": 374,
    "figures.registration._logarithmic": 257,
    "figures.registration.calibration_curve": 299,
    "figures.registration.evidence_curve": 321,
    "figures.registration.jacobian_histogram": 377,
    "figures.suggestions.suggestions_figure": 271,
    "inputs.read_sides": 301,
    "io.case_table._files": 281,
    "io.frame_check.check_inside": 320,
    "io.geometry_files.ply_files._irregular_table": 252,
    "io.geometry_files.ply_files.write": 302,
    "io.geometry_files.vtk_legacy._read_attribute": 279,
    "io.geometry_files.vtk_legacy.read_legacy": 258,
    "io.geometry_files.vtk_xml._mesh": 267,
    "io.image_files.dicom_series._check_steps": 255,
    "io.image_files.nifti_slabs._Slabs.write": 298,
    "io.landmark_files.bigwarp.read": 261,
    "io.landmark_files.delimited.delimited": 277,
    "io.landmark_files.table_csv._covariances": 288,
    "io.landmark_files.tps._specimen": 312,
    "io.map_files.write_all_maps": 265,
    "io.transform_files._write_itk": 271,
    "loo.loo": 333,
    "outputs.dense.smooth_field": 325,
    "outputs.suggestions._best": 278,
    "outputs.summary.summary": 329,
    "outputs.transforms._coarsest": 289,
    "outputs.warp.interpolator": 313,
    "phantoms.brain._head": 254,
    "phantoms.brain._outside_brain": 348,
    "phantoms.brain._tube": 264,
    "phantoms.brain._ventricles": 263,
    "phantoms.brain.anatomy": 370,
    "phantoms.brain.echo": 437,
    "phantoms.brain.t1": 389,
    "phantoms.brain_shift._ultrasound": 360,
    "phantoms.cohorts.generated_cohort": 260,
    "report.answer.calibration_badge": 279,
    "report.cohort_answer.calibration_badge": 280,
    "report.cohort_page.study_page": 349,
    "report.files._transform": 254,
    "report.page.page": 364,
    "report.planes._grid_path": 292,
    "report.planes._landmarks": 279,
    "report.planes.plane_svg": 309,
    "report.readout.readout": 270,
    "results._write_for_others": 399,
    "results.write_results": 282,
    "suggest._lines": 270,
    "tune.tune": 265,
}
"""Functions outside the core above `style.MAX_NODES`, with their sizes. This list may only shrink."""

WIDE_IN_THE_SHELL = {
    "report.look.coloured_planes": 7,
    "report.planes.plane_svg": 8,
    "results.write_results": 7,
}
"""Functions outside the core with more than `style.MAX_POSITIONAL` positional parameters, with
their number. This list may only shrink."""


@functools.cache
def modules():
    """Every module of the package by name, with its tree; a folder's own module has its name."""
    trees = {}
    for path in SOURCE.rglob("*.py"):
        name = style.module_name(path, SOURCE).removesuffix(".__init__")
        if name != "__init__":
            trees[name] = ast.parse(path.read_text(encoding="utf-8"))
    return trees


def layer(name):
    return name.partition(".")[0]


def imported(tree):
    """The dotted names that a module imports from the package, without the package's own.

    What is imported for the type checker alone does not count: it is never imported.
    """
    unread = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            unread |= {id(inner) for statement in node.body for inner in ast.walk(statement)}
    for node in ast.walk(tree):
        if id(node) in unread:
            continue
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            if name.startswith("kunita."):
                yield name.removeprefix("kunita.")


def imports():
    """Which modules each module imports: of `from kunita.a.b import c` it is a.b.c, or else a.b."""
    found = {}
    for name, tree in modules().items():
        found[name] = set()
        for target in imported(tree):
            while target and target not in modules():
                target = target.rpartition(".")[0]
            if target:
                found[name].add(target)
    return found


def test_every_layer_has_its_place_in_the_flow():
    assert {layer(name) for name in modules()} <= set(ORDER)


def test_imports_point_up_the_flow_only():
    against = set()
    for name, targets in imports().items():
        for target in targets:
            if ORDER.index(layer(target)) > ORDER.index(layer(name)):
                against.add((name, target))
    assert against == AGAINST_THE_ORDER


def test_the_inference_reads_neither_targets_nor_noise_of_landmarks():
    """It is given rows, information, and pairs of points to start an alignment from."""
    read = set()
    for name, tree in modules().items():
        if layer(name) not in ("inference", "posterior", "evaluation"):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and node.attr in OF_LANDMARKS:
                read.add((name, ast.unparse(node)))
    assert read == {("inference.sample", "pairs.fixed")}


def test_only_observations_and_pairs_know_the_noise_of_either_side():
    """Pairs, in `checks`, are what observations are made from."""
    for name, tree in modules().items():
        if layer(name) in ("observations", "checks"):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute):
                assert node.attr not in ("fixed_noise", "moving_noise"), name
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("replace"):
                changed = {word.arg for word in node.keywords}
                assert not changed & {"fixed_noise", "moving_noise"}, name


def test_no_module_imports_itself_by_a_detour():
    found = imports()
    for name, target in AGAINST_THE_ORDER:
        found[name].discard(target)
    graphlib.TopologicalSorter(found).prepare()  # raises, and names the cycle


def test_public_names_exist_and_the_stub_lists_the_same():
    stub = set(re.findall(r"import (\w+) as \1", (SOURCE / "__init__.pyi").read_text()))
    assert stub == set(kunita.__all__) - {"__version__"}
    for name in kunita.__all__:
        assert getattr(kunita, name) is not None
    assert set(dir(kunita)) == set(kunita.__all__)


def test_importing_kunita_imports_nothing_heavy():
    code = "import sys, kunita; print([m for m in ('jax', 'numpy', 'scipy', 'matplotlib') if m in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


def test_only_numerics_factors_and_only_there_jitter_has_a_size():
    for name, tree in modules().items():
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
        for call in calls if name != "numerics" else []:
            assert not ast.unparse(call.func).endswith("linalg.cholesky"), name
            sizes = [ast.unparse(word.value) for word in call.keywords if word.arg == "jitter"]
            assert all(size == "0.0" or size.startswith("numerics.") for size in sizes), name


@pytest.fixture(scope="module")
def measured():
    return style.read_modules(SOURCE)


@pytest.mark.parametrize("figure", CORE_LIMITS)
def test_the_core_can_be_read(figure, measured):
    core = style.summarise(module for module in measured if module.in_core)
    assert getattr(core, figure) <= CORE_LIMITS[figure]


def test_functions_of_the_core_do_one_thing(measured):
    """Past 250 nodes a function is looking for a missing noun, past six parameters for a class."""
    core = [module for module in measured if module.in_core]
    assert [function.name for function in style.large_functions(core)] == []
    assert [function.name for function in style.wide_functions(core)] == []


def test_exceptions_in_the_shell_only_shrink(measured):
    shell = [module for module in measured if not module.in_core]
    sizes = {function.name: function.size for function in style.large_functions(shell)}
    widths = {function.name: function.positional for function in style.wide_functions(shell)}
    assert_only_shrunk(sizes, LARGE_IN_THE_SHELL)
    assert_only_shrunk(widths, WIDE_IN_THE_SHELL)


def assert_only_shrunk(found, allowed):
    grown = {name: size for name, size in found.items() if size > allowed.get(name, 0)}
    assert not grown, "divide these rather than let them grow"
    assert not set(allowed) - set(found), "no longer exceptions: take them off the list"


def test_the_figures_are_what_their_definitions_say(tmp_path):
    text = '''
class Noun:
    """Says what it is."""

    @property
    def name(self, a, b):
        """Not counted."""
        x = a
        return x + b


# a comment
a, b = 1, 2
a, b = divmod(1, 2)
'''
    path = tmp_path / "module.py"
    path.write_text(text)
    module = style.measure(path, "flow.module")
    (function,) = module.functions
    assert module.in_core
    assert module.lines == 14
    assert module.tuple_assignments == 1
    assert module.comment_lines == 1
    assert len(module.code_columns) == 7
    assert module.docstring_columns == (26, 26)
    assert function.name == "flow.module.Noun.name"
    assert (function.size, function.length, function.positional) == (12, 2, 2)


def test_no_test_overwrites_a_constant():
    """What a test wants otherwise it passes as a value."""
    overwritten = re.compile(r"setattr\([^)\n]*[\"'.][A-Z][A-Z_]+[\"']")
    found = [
        str(path)
        for path in pathlib.Path(__file__).parent.rglob("*.py")
        if overwritten.search(path.read_text(encoding="utf-8"))
    ]
    assert found == []
