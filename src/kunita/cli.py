"""The command line: arguments in, `commands` does the work, the exit status says how it ended."""

import sys
import traceback
from collections.abc import Sequence
from typing import Any

from kunita.arguments import parser
from kunita.errors import ExitStatus, KunitaError


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; input that is refused is one line, a bug shows its traceback."""
    arguments = parser().parse_args(argv)
    try:
        return int(_run(arguments.command)(arguments))
    except KunitaError as error:
        return _say(" ".join(str(error).split()), ExitStatus.REFUSED)
    except OSError as error:
        return _say(f"{error.filename or 'a file'}: {error.strerror or error}", ExitStatus.REFUSED)
    except KeyboardInterrupt:
        return _say("stopped; no result was changed", ExitStatus.STOPPED)
    except Exception:
        traceback.print_exc()
        return ExitStatus.BUG


def _run(command: str) -> Any:
    """The function of a command, imported when it is needed: --help does without."""
    if command == "demo":
        from kunita.demo import demo

        return demo
    if command == "reproduce":
        from kunita.reproduce import reproduce

        return reproduce
    from kunita import commands

    return getattr(commands, command)


def _say(text: str, status: ExitStatus) -> int:
    sys.stderr.write(f"kunita: error: {text}\n")
    return status


if __name__ == "__main__":
    sys.exit(main())
