"""The script for a scheduler on other machines: the person's own, and beside it what sends us its output. Pure.

`wrapped_job.sh` is the frame and `wrapped_run.py` does the work wherever there is a Python 3.6; both travel inside the
script, since nothing of ours is installed on those machines.
"""

from __future__ import annotations

import base64
import json
import re
import shlex
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

LIMIT_BYTES: Final = 64 * 1024**2
PERIOD_S: Final = 2
_HERE: Final = Path(__file__).resolve().parent
_TOKEN: Final = re.compile(r"[A-Za-z0-9_.:=-]{1,300}\Z")
_PEM: Final = re.compile(r"[A-Za-z0-9+/=\s-]*\Z")
# No line of base64, of JSON, of a PEM file or of our own text is this one.
_END: Final = "SWITCHYARD_END_OF_PART"


def wrap(
    script: str, *, url: str, token: str, ca: str = "", limit_bytes: int = LIMIT_BYTES, period_s: int = PERIOD_S
) -> str:
    """`script`, starting with `#!`, inside one for /bin/sh that posts its output to `url` with `token`.

    `ca`: the certificates to trust, as PEM; else those of the machine. Raises ValueError for what is not of its form.
    """
    base = urlsplit(url)
    if base.scheme not in {"http", "https"} or not base.hostname or base.query or base.fragment or base.username:
        raise ValueError("it must be like https://switchyard.example.org")
    if not url.isascii() or not url.isprintable() or re.search(r"""[\s"'\\$`{}\[\]]""", base.path) or base.port == 0:
        raise ValueError("it holds characters that do not belong into an address")
    if not _TOKEN.match(token):
        raise ValueError("the token has characters that no token has")
    if not _PEM.match(ca):
        raise ValueError("the certificates are not in PEM form")
    content = script.encode()
    address = url.rstrip("/")
    config = {
        "url": address,
        "token": token,
        "command": _command(script),
        "limit": limit_bytes,
        "period_s": period_s,
    }
    parts = {
        "END": _END,
        "SCRIPT": base64.encodebytes(content).decode().rstrip("\n"),
        "RUN": (_HERE / "wrapped_run.py").read_text("ascii").rstrip("\n"),
        "CONFIG": json.dumps(config),
        "CA": ca if not ca or ca.endswith("\n") else ca + "\n",
        "SIZE": str(len(content)),
        "URL": shlex.quote(address),
        "TOKEN": shlex.quote(token),
        "COMMAND": shlex.join(_command(script)),
        "LIMIT": str(limit_bytes),
        "SPOOL": str(limit_bytes + 1),
        "PERIOD": str(period_s),
    }
    frame = (_HERE / "wrapped_job.sh").read_text("ascii")
    # One pass: what was put in is never looked at again.
    return re.sub(r"@([A-Z]+)@", lambda match: parts[match[1]], frame)


def _command(script: str) -> list[str]:
    """What the kernel would run for the first line: an interpreter and at most one argument.

    The interpreter is called by name, since the folder the script lies in may not allow programs.
    """
    first = script.split("\n", 1)[0]
    words = first.removeprefix("#!").strip(" \t").split(None, 1) if first.startswith("#!") else []
    if not words:
        return ["/bin/sh"]
    interpreter = words[0] if "/" in words[0] else f"./{words[0]}"
    return [interpreter, *(word.strip(" \t") for word in words[1:])]
