"""Why a gate gives no verdict: each reason has a code, a message with the remedy, and an exit status."""

USAGE, BROKEN, UNDECIDED = 2, 3, 4


class GateRefusal(Exception):  # noqa: N818 - no error of the program
    """There is nothing to judge. `code` is for scripts; `status` is the exit status."""

    def __init__(self, code: str, message: str, status: int = USAGE) -> None:
        super().__init__(message)
        self.code = code
        self.status = status
