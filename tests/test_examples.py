"""Examples and the README run as they stand, and one number of each is known."""

import pathlib
import re
import runpy

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).parent.parent


@pytest.mark.slow
def test_circle_to_flower_writes_its_record_and_figure(tmp_path, capsys):
    reg = runpy.run_path(str(ROOT / "examples" / "circle_to_flower.py"))["main"](tmp_path)
    assert reg.converged
    assert reg.energy == pytest.approx(11.96, abs=0.01)
    assert (tmp_path / "registration.h5").stat().st_size > 1000
    assert (tmp_path / "circle_to_flower.png").read_bytes().startswith(b"\x89PNG")
    assert "smallest Jacobian determinant 0.3" in capsys.readouterr().out


def test_the_code_of_the_readme_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    names = {}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)
    assert len(blocks) == 3
    assert np.abs(names["reg"].posterior.predict(names["moving"]).mean - names["fixed"]).max() < 3
    assert (tmp_path / "registration.h5").exists()
    np.testing.assert_allclose(names["back"].positions[-1], names["x"], atol=1e-6)
