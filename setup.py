"""The extension module that recording is faster with; pyproject.toml has all else.

It is optional: without a C compiler, or with EDBATCH_NO_EXTENSIONS=1 in the
environment, edbatch is installed without it and records in Python.
"""

import os

from setuptools import Extension, setup

EXTENSIONS = [
    Extension(
        "edbatch.graph.compiled_recording",
        ["edbatch/graph/compiled_recording.pyx"],
        extra_compile_args=["-g0"],
        optional=True,
    )
]

without = os.environ.get("EDBATCH_NO_EXTENSIONS", "0") not in ("", "0")
setup(ext_modules=[] if without else EXTENSIONS)
