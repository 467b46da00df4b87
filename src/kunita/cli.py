"""The command line: arguments in, `commands` does the work, the exit status says how it ended."""

import contextlib
import gc
import importlib
import os
import shlex
import sys
import traceback
from collections.abc import Sequence
from typing import Any

from kunita.arguments import parser
from kunita.errors import ExitStatus, KunitaError
from kunita.jaxrun.memory import keep_freed_memory


def entry() -> None:
    """The program `kunita`: run one command and end.

    At once: to take everything in memory apart first, as Python does, takes a tenth of a second or
    three. Unless there are other processes to be told, or temporary folders to be removed.
    """
    gc.set_threshold(
        1_000_000
    )  # importing makes objects by the hundred thousand, and none of them is garbage
    keep_freed_memory()
    status = main()
    if {"joblib", "matplotlib"} & sys.modules.keys():
        sys.exit(status)
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; input that is refused is one line, a bug shows its traceback."""
    arguments = parser().parse_args(argv)
    arguments.typed = shlex.join(["kunita", *(sys.argv[1:] if argv is None else argv)])
    try:
        return int(_run(arguments)(arguments))
    except KunitaError as error:
        return _say(" ".join(str(error).split()), ExitStatus.REFUSED)
    except OSError as error:
        return _say(f"{error.filename or 'a file'}: {error.strerror or error}", ExitStatus.REFUSED)
    except KeyboardInterrupt:
        return _say("stopped; no result was changed", ExitStatus.STOPPED)
    except Exception:
        traceback.print_exc()
        return ExitStatus.BUG


OWN_MODULE = ("demo", "loo", "reproduce", "suggest", "tune")
"""Commands that are a module of their own; the others are in `commands`."""


def _run(arguments: Any) -> Any:
    """The function of a command, imported when it is needed: --help does without."""
    command = arguments.command
    if getattr(arguments, "from_images", None):
        return importlib.import_module("kunita.from_images").register
    home = f"kunita.{command}" if command in OWN_MODULE else "kunita.commands"
    return getattr(importlib.import_module(home), command)


def _say(text: str, status: ExitStatus) -> int:
    with contextlib.suppress(BrokenPipeError):
        sys.stderr.write(f"kunita: error: {text}\n")
    return status


if __name__ == "__main__":
    entry()
