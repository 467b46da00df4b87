"""What a person sees while a command runs: progress and remarks on standard error, the answer on
standard output.
"""

import contextlib
import dataclasses
import json
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rich.console import Console as RichConsole
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from kunita.errors import KunitaWarning

LEAST_DONE = 0.03
"""The share of the work from which on the time that is left is worth saying."""


@dataclasses.dataclass(frozen=True)
class Stage:
    """A part of a longer piece of work.

    Args:
        name: what is said while it runs.
        share: of the whole time, in any unit.
    """

    name: str
    share: float


class WorkDone:
    """How much of a piece of work is done, and how long the rest will take.

    Args:
        stages: in the order in which they come; others may come between and count for nothing.
        clock: gives seconds.
    """

    def __init__(
        self, stages: Sequence[Stage], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.stages = tuple(stages)
        self.clock = clock
        self.began = clock()
        self.done = 0.0

    def reach(self, name: str, fraction: float) -> float:
        """The share of the whole that is done when so much of a stage is; it never falls."""
        total = sum(stage.share for stage in self.stages)
        before = 0.0
        for stage in self.stages:
            if stage.name == name:
                within = min(max(fraction, 0.0), 1.0) * stage.share
                self.done = max(self.done, (before + within) / total)
                break
            before += stage.share
        return self.done

    @property
    def seconds_left(self) -> float | None:
        """If the rest goes as fast as what is done; None where that says little."""
        if self.done < LEAST_DONE:
            return None
        return (self.clock() - self.began) * (1 - self.done) / self.done

    @property
    def left(self) -> str:
        """The same in words."""
        seconds = self.seconds_left
        if seconds is None:
            return ""
        if seconds < 90:
            return f"about {max(round(seconds), 1)} s left"
        return f"about {round(seconds / 60)} min left"


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

    @contextlib.contextmanager
    def one_bar(self, stages: Sequence[Stage]) -> Iterator[Callable[[str], Callable[..., None]]]:
        """One bar for work in several stages, on a terminal; a line for each where there is none.

        What is yielded is called when a stage begins. It gives what is told how much of the stage
        is done, and, if there is more to say, what it is at.
        """
        columns = (
            SpinnerColumn(),
            BarColumn(),
            TextColumn("{task.fields[left]}"),
            TextColumn("{task.description}"),
        )
        shown = not self.quiet and self.errors.is_terminal
        work = WorkDone(stages)
        with Progress(*columns, console=self.errors, transient=True, disable=not shown) as bars:
            task = bars.add_task("", total=1.0, left="")

            def begin(stage: str) -> Callable[..., None]:
                if not shown:
                    self.note(f"  {stage} …")

                def tell(fraction: float, detail: str = "") -> None:
                    bars.update(
                        task,
                        completed=work.reach(stage, fraction),
                        description=f"{stage}: {detail}" if detail else stage,
                        left=work.left,
                    )

                tell(0.0)
                return tell

            yield begin
