"""Where a benchmark's numbers come from."""

import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import jax


def provenance(**more) -> dict:
    """Commit, device and versions of this run; `BENCH_COMMIT` names the commit where there is no repository."""
    return {
        "commit": os.environ.get("BENCH_COMMIT") or _commit(), "device": jax.devices()[0].device_kind,
        "cores": os.cpu_count(), "jax": jax.__version__, "python": platform.python_version(),
        "date": datetime.now(UTC).date().isoformat(), **more,
    }  # fmt: skip


def _commit() -> str:
    command = ["git", "rev-parse", "--short", "HEAD"]
    try:
        return subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True).stdout.strip()
    except OSError:
        return ""
