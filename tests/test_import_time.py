"""Tests which modules `import edbatch` loads, and which load on first use."""

import json
import subprocess
import sys
from importlib.metadata import packages_distributions

import pytest

# Dependencies that load on first use, and their own dependencies.
LATER = (
    *("flax", "gymnasium", "matplotlib", "optax", "orbax", "rich", "typer"),
    *("prometheus_client", "pydantic", "starlette", "uvicorn"),
)
LATER_OWN = (
    *("benchmark", "cli", "data", "envs", "flax", "http", "models", "plot", "training"),
)
PRINT = "import sys, json; print(json.dumps([*sys.modules]))"


def loaded(code: str) -> set[str]:
    """The modules that are loaded after running some code in a new process."""
    # -P: imports the installed package, not one in the current folder.
    done = subprocess.run(
        [sys.executable, "-P", "-c", f"{code}\n{PRINT}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return {*json.loads(done.stdout.splitlines()[-1])}


def test_import_loads_what_a_model_needs_and_no_more() -> None:
    modules = loaded("import edbatch")
    assert {"jax", "numpy", "numba", "edbatch.batched", "edbatch.policies"} <= modules
    assert not {name.partition(".")[0] for name in modules} & {*LATER}
    own = {name.split(".")[1] for name in modules if name.startswith("edbatch.")}
    assert "batched" in own
    assert not own & {*LATER_OWN}


def test_import_loads_no_distribution_but_these() -> None:
    """Modules that JAX and Numba load themselves, such as scipy, do not count."""
    known, own = packages_distributions(), "import jax, jax.numpy, numpy, numba"
    wanted, found = (
        {dist for name in loaded(code) for dist in known.get(name.split(".")[0], ())}
        for code in (own, "import edbatch")
    )
    assert found - wanted == {"edbatch", "greenlet"}


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("edbatch.BatchingEnv", "gymnasium"),
        ("edbatch.envs.AgentPolicy", "gymnasium"),
        ("edbatch.flax.cell", "flax"),
        ("edbatch.training.Trainer", "optax"),
    ],
)
def test_a_name_loads_what_it_needs(code: str, name: str) -> None:
    assert name in loaded(f"import edbatch; {code}")


def test_a_name_that_does_not_exist() -> None:
    import edbatch

    with pytest.raises(AttributeError, match="'edbatch' has no attribute 'batchh'"):
        _ = edbatch.batchh


@pytest.mark.parametrize(
    "imports",
    [
        "import edbatch; import gymnasium",
        "import gymnasium; import edbatch",
        "import edbatch.envs; import gymnasium",
        "import edbatch; import gymnasium.spaces; import gymnasium",
    ],
)
def test_gymnasium_knows_the_environment_after_both_imports(imports: str) -> None:
    make = "env = gymnasium.make('edbatch/Batching-v0'); env.reset(seed=0)"
    check = "assert type(gymnasium.__spec__.loader).__name__ == 'SourceFileLoader'"
    assert "edbatch.envs" in loaded(f"{imports}; {make}; {check}")


def test_help_loads_no_workload() -> None:
    modules = loaded("import edbatch.cli.main")
    own = {name for name in modules if name.startswith("edbatch.models.")}
    assert {"typer", "rich"} <= modules
    assert not {"flax", "gymnasium", "matplotlib", "optax", "starlette"} & modules
    assert all(name.startswith("edbatch.models.shared") for name in own), own
