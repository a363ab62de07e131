"""Tests the types that type checkers infer in a project that has edbatch installed."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

PROJECT_ROOT = Path(__file__).resolve().parents[1]
LIMIT_S = 500

PROJECT = '''
import edbatch as eb
import jax
import jax.numpy as jnp
from edbatch import policies
from edbatch.envs import BatchingEnv
from edbatch.memory_planner import Planner


@eb.cell
def compose(w: jax.Array, left: jax.Array, right: jax.Array) -> jax.Array:
    """Composes."""
    return jnp.tanh(w @ left + right)


@eb.cell(static=("n",), name="power")
def power(x: jax.Array, n: int) -> tuple[jax.Array, jax.Array]:
    return x**n, x


@eb.cell(padded=("parts",), lengths=(2, 4))
def total(parts: jax.Array, mask: jax.Array) -> jax.Array:
    return (parts * mask[:, None]).sum(0)


@eb.cell
def noise(x: jax.Array, scale: float, rng: jax.Array) -> jax.Array:
    return x + scale * jax.random.normal(rng, x.shape)


def plain(x: jax.Array) -> jax.Array:
    return x


w = jnp.eye(3)
reveal_type(compose(w, w[0], right=w[1]))  # 1 Array
reveal_type(power(w, n=2))  # 2 tuple Array Array
reveal_type(total([w[0], w[1]]))  # 3 Array, without the mask
reveal_type(noise(w[0], 0.5))  # 4 Any, without the key
other = eb.cell(plain, name="other")
reveal_type(other(w))  # 5 Array
compose(w, w[0])  # error: right is missing
compose(w, w[0], "no")  # error: no array
power(w, n="3")  # error: no int
eb.cell(static=3)  # error: no names
eb.cell(padding=("parts",))  # error: no such option
any_cell: eb.Cell = compose
batched = eb.batch(lambda params, x: compose(params, x, x), params=w)
report: eb.Explanation = batched.explain([w[0]])
names: list[str] = [str(each.key) for each in batched.types]
chosen: eb.Policy = policies.get_policy("greedy")
environment: type = BatchingEnv
planner: Planner = batched.planner
'''


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The interpreter of an environment with edbatch installed as from a wheel."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    site = folder / "lib" / version / "site-packages"
    package = site / "edbatch"
    package.mkdir()
    for each in (PROJECT_ROOT / "edbatch").iterdir():
        (package / each.name).symlink_to(each)
    for name in ("envs", "memory_planner", "policies"):
        (package / name).symlink_to(PROJECT_ROOT / name)
    (site / "others.pth").write_text(sysconfig.get_path("purelib"))
    return python


@pytest.fixture
def project(tmp_path):
    (tmp_path / "model.py").write_text(PROJECT)
    return tmp_path


def lines_with(text):
    return {k for k, line in enumerate(PROJECT.splitlines(), 1) if text in line}


def run(*arguments, folder):
    return subprocess.run(
        [str(each) for each in arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        env={**os.environ, "MYPYPATH": ""},
    ).stdout


def check(output, errors, types):
    """Compares the errors and types that a checker reported with the expected ones."""
    assert {int(each) for each in errors} == lines_with("# error"), output
    expected = ["Array", "tuple", "Array", "Any", "Array"]
    assert len(types) == len(expected), output
    for found, kind in zip(types, expected, strict=True):
        assert re.match(rf"(jax\.[\w.]*|tuple\[.*)?{kind}\b", found), output


@pytest.mark.skipif(sys.platform == "win32", reason="folders of links")
def test_mypy(installed, project):
    pytest.importorskip("mypy")
    cache = PROJECT_ROOT / ".mypy_cache" / "of a user"
    options = ("--strict", "--python-executable", installed, "--cache-dir", cache)
    command = (sys.executable, "-m", "mypy", *options, "model.py")
    output = run(*command, folder=project)
    errors = re.findall(r"model\.py:(\d+): error", output)
    check(output, errors, re.findall(r'Revealed type is "(.*)"', output))


@pytest.mark.slow
def test_pyright(installed, project):
    pyright = shutil.which("pyright", path=sysconfig.get_path("scripts"))
    if pyright is None:
        pytest.skip("needs pyright: pip install pyright, which fetches it at first use")
    output = run(pyright, "--pythonpath", installed, "model.py", folder=project)
    errors = re.findall(r"model\.py:(\d+):\d+ - error", output)
    check(output, errors, re.findall(r'Type of ".*" is "(.*)"', output))


def test_the_package_says_that_it_is_typed():
    assert (PROJECT_ROOT / "edbatch" / "py.typed").exists()
