"""What a person sees while a command runs: progress and remarks on standard error, the answer on
standard output.
"""

import contextlib
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from rich.console import Console as RichConsole
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from kunita.errors import KunitaWarning


class _Errors(RichConsole):
    """Standard error; when nobody reads it any more, the work goes on."""

    def on_broken_pipe(self) -> None:
        self.file = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 (for the rest of the process)


class Console:
    """Speaks, or keeps quiet: `quiet` leaves warnings only; with `as_json` standard output has one
    JSON document.
    """

    def __init__(self, *, quiet: bool, as_json: bool) -> None:
        self.quiet, self.as_json = quiet, as_json
        self.errors = _Errors(stderr=True, highlight=False, soft_wrap=True)

    def note(self, text: str) -> None:
        """Something worth knowing on the way."""
        if not self.quiet:
            self.errors.print(text, markup=False)

    def warn(self, text: str) -> None:
        """Something that deserves a second look."""
        self.errors.print(f"kunita: warning: {text}", markup=False)

    def answer(self, text: str, document: Any) -> None:
        """What the command was asked for; its files are written whether anybody reads this or not."""
        with contextlib.suppress(BrokenPipeError):
            if self.as_json:
                sys.stdout.write(
                    json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
                )
            elif not self.quiet:
                sys.stdout.write(text + "\n")

    @contextlib.contextmanager
    def warnings(self) -> Iterator[None]:
        """Print Kunita's own warnings as lines, the moment they come."""

        def show(message: Any, category: type[Warning], *place: Any, **where: Any) -> None:
            if issubclass(category, KunitaWarning):
                self.warn(str(message))
            else:
                usual(message, category, *place, **where)

        with warnings.catch_warnings():
            usual, warnings.showwarning = warnings.showwarning, show
            warnings.simplefilter("always", KunitaWarning)
            yield

    @contextlib.contextmanager
    def progress(self) -> Iterator[Callable[[str], Callable[[float], None]]]:
        """A bar for each thing that begins, on a terminal; a line for each where there is none."""
        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            TimeElapsedColumn(),
        )
        shown = not self.quiet and self.errors.is_terminal
        with Progress(*columns, console=self.errors, transient=True, disable=not shown) as bars:

            def begin(description: str) -> Callable[[float], None]:
                if not shown:
                    self.note(f"  {description} …")
                task = bars.add_task(description, total=None)
                return lambda fraction: bars.update(task, total=1.0, completed=fraction)

            yield begin
