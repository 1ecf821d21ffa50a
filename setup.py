"""The one thing pyproject.toml cannot say: a C extension that may be missing.

The native spawner is optional. Without a compiler, on another system, on a free-threaded
interpreter (it has no stable ABI) or with BIRTHMARK_PURE=1 in the environment, the package is
built without it and works through the pure path.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel

SOURCE = Path("src/birthmark/_native/spawn.c")


def extensions() -> list[Extension]:
    """Return the extension modules this interpreter can have; none is a valid answer."""
    wanted = (
        sys.platform == "linux"
        and not sysconfig.get_config_var("Py_GIL_DISABLED")
        and os.environ.get("BIRTHMARK_PURE", "") in ("", "0")
        and SOURCE.exists()
    )
    if not wanted:
        return []
    return [
        Extension(
            "birthmark._native.spawn",
            sources=[SOURCE.as_posix()],
            define_macros=[("Py_LIMITED_API", "0x030B0000")],
            extra_compile_args=["-std=gnu11", "-O2", "-Wall", "-Wextra"],
            py_limited_api=True,
            optional=True,
        )
    ]


class Wheel(bdist_wheel):
    """A wheel whose tag tells what is in it, not what was hoped for."""

    def get_tag(self) -> tuple[str, str, str]:
        # Asked after the build. An optional extension that failed to compile left no file, and a wheel
        # without one runs everywhere.
        if not any(Path(self.bdist_dir).rglob("_native/*.so")):
            self.root_is_pure = True
            return ("py3", "none", "any")
        return super().get_tag()


setup(
    ext_modules=extensions(),
    cmdclass={"bdist_wheel": Wheel},
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
