"""One family of exceptions, and the ways a solve can end.

Input is refused at the border with an exception that names the argument or the landmark; inside the
numerical code nothing raises: how a solve ended is an `Outcome` carried in its result.
"""

import enum


class KunitaError(Exception):
    """Anything that Kunita refuses to do; catching it catches them all."""


class InputError(KunitaError, ValueError):
    """The caller's input was refused; nothing was computed."""


class ArgumentError(InputError):
    """An argument has a value that makes no sense, such as a negative length scale."""


class LandmarkError(InputError):
    """A landmark, or a pair of landmark sets, cannot be used as it is."""


class ImageError(InputError):
    """An image or a grid cannot be used as it is."""


class FileError(InputError):
    """A file is not what it claims to be, or cannot be written."""

    @classmethod
    def at(cls, path: object, line: int | None, expected: str, found: object) -> "FileError":
        """A file refused at one of its lines: where, what was expected there, what was found."""
        place = f"{path}:{line}" if line is not None else f"{path}"
        return cls(f"{place}: expected {expected}, found {found!r:.120}")


class InverseError(KunitaError):
    """A point has no (unique) pre-image: the small-deformation map folds there."""


class KunitaWarning(UserWarning):
    """The input was accepted, but the answer deserves a second look."""


class Outcome(enum.Enum):
    """How a solve ended; the value is the message, with its cure."""

    CONVERGED = "converged"
    ITERATIONS = (
        "not converged: the iterations ran out; raise the noise or the length scale, "
        "or check the landmarks for swapped pairs"
    )
    STALLED = (
        "not converged: no step lowers the energy any more; raise the noise or the length scale, "
        "or check the landmarks for swapped pairs"
    )

    IMAGES_UNSETTLED = (
        "not converged: the last step still asked for a move of the images; look at the warped "
        "image, and give init, masks or a few landmarks if it is wrong"
    )

    @property
    def converged(self) -> bool:
        return self is Outcome.CONVERGED


class ExitStatus(enum.IntEnum):
    """How a command ended."""

    DONE = 0
    BUG = 1
    REFUSED = 2
    NOT_CONVERGED = 3
    STOPPED = 130
