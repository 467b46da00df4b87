"""The tree is the data flow: imports point one way, names are public once, and importing costs
nothing."""

import ast
import pathlib
import re
import subprocess
import sys

import kunita

SOURCE = pathlib.Path(kunita.__file__).parent

ORDER = (
    "errors", "jaxrun.threads", "jaxrun.doors", "jaxrun.programs", "numerics", "kernels",
    "flow.shooting", "flow.control", "flow.transport", "flow.covariance", "flow.moments", "flow.simulate",
    "flow.referee",
    "observations", "inference.objective", "inference.trend", "inference.problem", "inference.path_space",
    "inference.gauss_newton", "inference.newton", "inference.trust_region", "inference.solve", "inference.evidence",
    "inference.batch",
    "inference.sample", "inference.choice", "inference.robust",
    "gaussians", "notebook", "posterior", "evaluation",
    "scores", "suspects",
    "data.landmarks", "data.raters", "data.image", "data.case", "data.geometry", "data.brain", "data.phantom",
    "phantoms.brain_shift", "phantoms.cohorts",
    "prior", "registration",
    "outputs.dense", "outputs.maps", "outputs.warp", "outputs.labels", "outputs.transforms", "outputs.carry",
    "outputs.hull", "outputs.layers", "outputs.targets", "outputs.suggestions", "outputs.expected",
    "outputs.summary", "outputs.profile",
    "io.frames", "io.writing",
    "io.landmark_files.text", "io.landmark_files.covariance_entries", "io.landmark_files.table",
    "io.frame_check",
    "io.landmark_files.reading", "io.landmark_files.format", "io.landmark_files.delimited",
    "io.landmark_files.mrk_json", "io.landmark_files.fcsv", "io.landmark_files.table_csv",
    "io.landmark_files.ants_csv", "io.landmark_files.slicer_csv", "io.landmark_files.birl",
    "io.landmark_files.bigwarp", "io.landmark_files.elastix", "io.landmark_files.index_text",
    "io.landmark_files.mni_tag", "io.landmark_files.tps", "io.landmark_files.files",
    "io.image_files.stored_images", "io.image_files.text_headers", "io.image_files.nifti_slabs",
    "io.image_files.nifti_images", "io.image_files.minc_images", "io.image_files.itk_images",
    "io.image_files.pictures", "io.image_files.dicom_series", "io.image_files.files",
    "io.geometry_files.mesh_frames", "io.geometry_files.vtk_legacy", "io.geometry_files.vtk_xml",
    "io.geometry_files.vtk_files", "io.geometry_files.ply_files", "io.geometry_files.stl_files",
    "io.geometry_files.gifti_files", "io.geometry_files.mrtrix_files", "io.geometry_files.trk_files",
    "io.geometry_files.files",
    "io.transform_files", "io.map_files", "io.registration_files", "io.summary_files", "io.slicer_script", "io.bids",
    "io.provenance", "io.result_folder", "io.recorded_grids", "io.case_table", "io.prior_files", "io.target_files",
    "figures.style", "figures.themed", "figures.registration", "figures.ellipses", "figures.deformation",
    "figures.overview",
    "figures.moments", "figures.synthetic", "figures.clinical", "figures.calibration", "figures.cohort",
    "figures.suggestions",
    "cohort.lanes", "cohort.leave_one_out", "cohort.prior", "cohort.baselines", "cohort.study", "cohort.study_tables",
    "cohort.study_findings", "cohort.study_pictures",
    "experiments.experiment", "experiments.moments", "experiments.synthetic", "experiments.clinical_tables",
    "experiments.clinical_findings", "experiments.clinical_pictures", "experiments.clinical",
    "experiments.files",
    "report.readout", "report.volumes", "report.planes", "report.answer", "report.files", "report.methods",
    "report.tables", "report.look", "report.drawings", "report.page", "report.result",
    "report.cohort_tables", "report.cohort_answer", "report.cohort_drawings", "report.cohort_methods",
    "report.cohort_page", "report.cohort_files",
    "console", "results", "arguments", "inputs", "inspection", "commands", "demo", "reproduce",
    "suggest", "tune", "loo", "cli",
)  # fmt: skip
"""Every module, in the order of the data flow: each may import only those before it."""


def modules():
    for path in SOURCE.rglob("*.py"):
        name = ".".join(path.relative_to(SOURCE).with_suffix("").parts)
        if not name.endswith("__init__"):
            yield name, ast.parse(path.read_text())


def imported(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_every_module_has_its_place_in_the_flow():
    assert sorted(name for name, _ in modules()) == sorted(ORDER)


def test_imports_point_up_the_flow_only():
    for name, tree in modules():
        for target in imported(tree):
            inner = target.removeprefix("kunita.")
            if target.startswith("kunita.") and inner in ORDER:
                assert ORDER.index(inner) < ORDER.index(name), f"{name} imports {inner}"


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
    for name, tree in modules():
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
        for call in calls if name != "numerics" else []:
            assert not ast.unparse(call.func).endswith("linalg.cholesky"), name
            sizes = [ast.unparse(word.value) for word in call.keywords if word.arg == "jitter"]
            assert all(size == "0.0" or size.startswith("numerics.") for size in sizes), name


def test_functions_stay_short():
    """Past 40 lines, docstring and signature not counted, a function is looking for a missing noun."""
    for name, tree in modules():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                body = node.body[1:] if ast.get_docstring(node) else node.body
                length = body[-1].end_lineno - body[0].lineno + 1 if body else 0
                assert length <= 40, f"{name}.{node.name}"
