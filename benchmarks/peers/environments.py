"""A virtual environment per peer, so that none disturbs another or ours; and the run of one trial
in it.
"""

import dataclasses
import os
import platform
import signal
import subprocess
import sys
from pathlib import Path

from peers.catalogue import OURS
from peers.trial import Result, read_result, write_result

PROGRAMS = Path(__file__).resolve().parent
INSTALL_LIMIT_S = 1200
REASON_CHARACTERS = 70


@dataclasses.dataclass(frozen=True)
class Environment:
    """The interpreter of a peer, or why there is none."""

    peer: str
    python: Path
    fault: str = ""

    def packages(self) -> list[str]:
        """What is installed, `name==version`."""
        command = [
            str(self.python),
            "-m",
            "pip",
            "list",
            "--format=freeze",
            "--disable-pip-version-check",
        ]
        listed = subprocess.run(command, capture_output=True, text=True, check=False)
        return listed.stdout.split()


def environment(peer: str, folder: Path) -> Environment:
    """The environment of a peer in a folder, made when there is none or its requirements have
    changed.
    """
    if peer == OURS:
        return Environment(peer, Path(sys.executable))
    home, wanted = folder / peer, (PROGRAMS / peer / "requirements.txt").read_text()
    python, stamp = home / "bin" / "python", home / "installed.txt"
    if stamp.exists() and stamp.read_text() == wanted:
        return Environment(peer, python)
    fault = install(peer, home)
    if not fault:
        stamp.write_text(wanted)
    return Environment(peer, python, fault)


def install(peer: str, home: Path) -> str:
    """Make an environment; what went wrong in a few words, or nothing."""
    home.mkdir(parents=True, exist_ok=True)
    log = home / "install.log"
    requirements = PROGRAMS / peer / "requirements.txt"
    pip = [
        home / "bin" / "python",
        "-m",
        "pip",
        "install",
        "--disable-pip-version-check",
        "--retries",
        "1",
    ]
    for command in ([sys.executable, "-m", "venv", home], [*pip, "-r", requirements]):
        status = run(command, log, INSTALL_LIMIT_S)
        if status:
            return (
                f"not run: does not install ({reason(log)})"
                if status > 0
                else "not run: too long to install"
            )
    return ""


def tried(
    where: Environment,
    problem: Path,
    path: Path,
    method: str,
    limit_s: float,
    logs: Path,
    settings: dict[str, str],
) -> Result:
    """Run one trial and store what came of it, the failures too."""
    if where.fault:
        return Result(status=where.fault)
    path.unlink(missing_ok=True)
    log = logs / f"{path.stem}.log"
    command = [where.python, PROGRAMS / where.peer / "run.py", problem, path, "--method", method]
    status = run(command, log, limit_s, settings)
    if status == 0 and path.exists():
        return read_result(path)
    result = ended_early(path, status, limit_s, log)
    write_result(path, result)
    return result


def ended_early(path: Path, status: int, limit_s: float, log: Path) -> Result:
    """What is known of a trial that ran out of time or failed: its first call, if that was
    finished.
    """
    known = read_result(path) if path.exists() else Result()
    if status == TOO_LONG:
        return dataclasses.replace(known, status=f"> {limit_s:g} s")
    why = "killed, probably for its memory" if status == -signal.SIGKILL else reason(log)
    return dataclasses.replace(known, status=f"not run: {why}")


TOO_LONG = -1000
"""Stands for the exit status of a program that was ended by us."""


def run(command: list, log: Path, limit_s: float, settings: dict[str, str] | None = None) -> int:
    """Run a program with its output in a file; it and its children are ended at the time limit.

    No peer finds programs that an earlier run compiled, unless it keeps them itself.
    """
    surroundings = {
        key: value for key, value in os.environ.items() if key != "JAX_COMPILATION_CACHE_DIR"
    }
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as out:
        process = subprocess.Popen(
            command,
            stdout=out,
            stderr=subprocess.STDOUT,
            env=surroundings | (settings or {}),
            start_new_session=True,
        )
        try:
            return process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return TOO_LONG
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def reason(log: Path) -> str:
    """The last line that a program said."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    last = lines[-1] if lines else "no output"
    return last if len(last) <= REASON_CHARACTERS else last[: REASON_CHARACTERS - 1] + "…"


def processor() -> str:
    """The processor's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def cores() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
