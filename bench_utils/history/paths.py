"""No path of a machine in what people publish."""

import re

# An absolute path, POSIX or Windows: two parts at least, so that "tok/s" and "1/16" are none.
_PART = r"[\w.@+~-]+"
_PATH = re.compile(rf"(?<![\w.])(?:[A-Za-z]:)?(?:[\\/](?:{_PART}(?: {_PART})*(?=[\\/])|{_PART})){{2,}}[\\/]?")


def without_paths(text: str) -> str:
    """The text with every absolute path in it replaced."""
    return _PATH.sub("<path>", text)
