"""Settings of all tests (strict JAX, an empty working folder) and shared fixtures."""

import contextlib
import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import jax
import pytest
from compile_report import CompileReport
from hypothesis.database import DirectoryBasedExampleDatabase
from kept_programs import KeptPrograms
from longest_files import LONGEST
from memory_regions import drop_programs_if_many
from quick_compile import quick_compile
from shared_contexts import SharedContexts

import edbatch
from edbatch.benchmark import measure
from edbatch.compilation.tier import try_options
from edbatch.stored_programs.folder import FOLDER
from edbatch.target import CPU

PROJECT_ROOT = Path(__file__).resolve().parents[1]

# One program per signature, also in processes that tests start; tests of tiers change
# this setting.
os.environ["EDBATCH_TIERS"] = "fine"
os.environ["EDBATCH_CACHE_DIR"] = "off"  # commands do not touch the user's programs
edbatch.use_tiers("fine")
jax.config.update("jax_enable_x64", False)
jax.config.update("jax_numpy_rank_promotion", "raise")

# Jaxprs and modules live long: a collection every 700 objects takes a tenth of the
# time of a process that has run for some minutes. Reference counts free the rest.
gc.set_threshold(50_000, 10, 10)

SLOW_LIMIT_S = 3600

IN_CI = "CI" in os.environ
# No deadline: the first example of a property includes the compilation.
hypothesis.settings.register_profile(
    "edbatch",
    deadline=None,
    derandomize=IN_CI,
    print_blob=IN_CI,
    database=None
    if IN_CI
    else DirectoryBasedExampleDatabase(PROJECT_ROOT / ".hypothesis" / "examples"),
)
hypothesis.settings.load_profile("edbatch")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--shared-data",
        default=os.environ.get("EDBATCH_SHARED_DATA"),
        help="folder of public data sets (default: $EDBATCH_SHARED_DATA, then "
        "shared/data beside the repository); tests that need it skip without it",
    )
    parser.addoption(
        "--compiles",
        type=int,
        metavar="N",
        help="print the N files and tests that compile most, with counts and seconds",
    )
    fuzz = parser.getgroup("fuzz", "random models, tests/fuzz")
    fuzz.addoption("--programs", type=int, default=10, help="how many random models")
    fuzz.addoption("--fuzz-seed", type=int, default=0, help="what decides them")
    fuzz.addoption("--fuzz-first", type=int, default=0, help="number of the first")
    fuzz.addoption(
        "--fuzz-without", default="", help="names of what to leave out, by commas"
    )
    fuzz.addoption(
        "--fuzz-shrink", type=int, default=25, help="runs to make a failing one smaller"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(KeptPrograms())
    config.pluginmanager.register(SharedContexts())
    shown = config.getoption("--compiles")
    if shown is not None:
        config.pluginmanager.register(CompileReport(shown))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Runs the longest files first, and gives slow tests an hour.

    The limit is set only if pytest-timeout is installed, which limits the other tests.
    """
    place = {PROJECT_ROOT / "tests" / name: k for k, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path, len(place)))
    for item in items:
        if item.get_closest_marker("slow") and item.config.pluginmanager.hasplugin(
            "timeout"
        ):
            item.add_marker(pytest.mark.timeout(SLOW_LIMIT_S))


def pytest_report_header() -> str:
    return f"edbatch: {Path(edbatch.__file__).parent}, JAX on {jax.default_backend()}"


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") and jax.default_backend() != "gpu":
        pytest.skip(f"needs a GPU, but JAX runs on {jax.default_backend()}")
    if item.get_closest_marker("devices") and jax.device_count() < 2:
        asked = "JAX_NUM_CPU_DEVICES" in os.environ
        outcome = pytest.fail if asked else pytest.skip
        outcome("needs two devices; set JAX_NUM_CPU_DEVICES=2")


@pytest.fixture(scope="module")
def quick_compiles() -> Iterator[None]:
    """Compiles faster, to slower programs: for tests that mostly compile.

    Processes that these tests start do so, too. Other tests compile as users do.
    """
    with pytest.MonkeyPatch.context() as patch, quick_compile():
        patch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
        yield


@pytest.fixture(scope="module", autouse=True)
def few_programs() -> Iterator[None]:
    """Drops compiled programs long before they reach the limit on memory regions."""
    yield
    drop_programs_if_many()


@pytest.fixture(scope="module", autouse=True)
def quick_collections() -> None:
    """Hides the objects that exist before a file from Python's garbage collector.

    Programs of other files are millions of objects, and each collection in a test would
    traverse them.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def own_lowered_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stores no lowered programs, and closes the folder that a test opens for them."""
    monkeypatch.setattr(FOLDER, "opened", None)


@pytest.fixture(scope="session", autouse=True)
def tried_options() -> None:
    """Tries XLA's options first, so that no test counts the programs this compiles."""
    try_options(CPU)


@pytest.fixture(scope="session", autouse=True)
def benchmarks_do_not_collect() -> Iterator[None]:
    """Keeps benchmarks from running Python's garbage collector over all objects."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measure, "gc_frozen", contextlib.nullcontext)
        yield


@pytest.fixture(scope="session", autouse=True)
def ctrl_c() -> None:
    """Enables Ctrl-C as in a terminal; background jobs of a shell ignore it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def empty_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Runs the tests in an empty folder, where no source tree can be imported."""
    folder = tmp_path_factory.mktemp("empty")
    before = Path.cwd()
    os.chdir(folder)
    yield folder
    os.chdir(before)


@pytest.fixture(scope="session")
def project_root() -> Path:
    """The folder that holds pyproject.toml."""
    return PROJECT_ROOT


@pytest.fixture(scope="session")
def shared_data(request: pytest.FixtureRequest) -> Path:
    """The folder of public data sets; skips the test if it does not exist."""
    named = request.config.getoption("--shared-data")
    if named is None:
        folder = PROJECT_ROOT.parent / "shared" / "data"
        if not folder.is_dir():
            pytest.skip("no shared/data beside the repository; see --shared-data")
        return folder
    folder = request.config.invocation_params.dir / named
    if not folder.is_dir():
        pytest.fail(f"--shared-data names {named}, which is not a folder")
    return folder
