"""Tests JAX settings under which calls and background compilations trace."""

import jax
import numpy as np
import pytest
from tiered_runs import PARAMS, loss_of, run_until_fine
from trees import encode, sample_trees

import edbatch as eb
from edbatch.cell.type_call import SETTINGS
from edbatch.compilation.jax_settings import _CONTEXTS
from edbatch.compilation.settings import REFINE_AFTER
from edbatch.compilation.worker import WORKER, Pending

pytestmark = pytest.mark.usefixtures("quick_compiles")

# Settings of traces that a cell's equations do not depend on: where they run, how they
# are lowered, and how that is reported.
OF_NO_CELL = {
    *("mesh_context_manager", "abstract_mesh_context_manager", "axis_env_state"),
    *("compute_on_context_manager", "xla_metadata_context_manager", "user_context"),
    *("pallas_tpu_interpret_mode_context_manager", "jax_default_device", "check_vma"),
    *("jax_embedded_constants_max_bytes", "jax_enable_pgle", "jax_no_execution"),
    *("jax_hlo_source_file_canonicalization_regex", "jax_pgle_profiling_runs"),
    *("jax_mutable_array_checks", "jax_pallas_enable_debug_checks"),
    *("jax_pallas_use_mosaic_gpu", "jax_ragged_dot_use_gpu_pallas_triton_lowering"),
    *("jax_remove_size_one_mesh_axis_from_type", "jax_threefry_gpu_kernel_lowering"),
    *("jax_use_emit_pipeline_primitive", "jax_use_shardy_partitioner"),
    *("jax_no_collectives", "jax_raise_on_ppermute_sort_diff", "layout_tracing_mode"),
    *("jax_use_hlo_logistic_lowering", "jax_xla_profile_version"),
    *("pallas_dynamic_shapes_export", "pallas_grid_context"),
}


def test_every_setting_that_jax_traces_under_is_known():
    from jax._src import config

    try:
        names = {*config.trace_context_names()}
    except NotImplementedError:
        pytest.skip("this jaxlib does not name them")
    assert "jax_enable_x64" in names
    unknown = names - OF_NO_CELL - {*SETTINGS}
    assert not unknown, f"settings for edbatch/cell/type_call.py: {sorted(unknown)}"


@pytest.mark.parametrize("name", _CONTEXTS)
def test_the_background_compiles_under_the_settings_of_the_call(auto, name):
    values = {
        "jax_default_device": jax.devices()[0],
        "jax_default_matmul_precision": "float32",
        "jax_default_prng_impl": "rbg",
        "jax_numpy_dtype_promotion": "strict",
        "jax_numpy_rank_promotion": "allow",
    }
    value = values.get(name, not getattr(jax.config, name))
    batched = eb.batch(encode, params=PARAMS, sizes=eb.Sizes(widths=(8,)))
    tiers, found = [], set()
    inner = loss_of(batched, tiers)

    def loss(params, plan):
        found.add(getattr(jax.config, name))
        return inner(params, plan)

    function = eb.jit(loss)
    with _CONTEXTS[name](value):
        run_until_fine(function, PARAMS, batched.plan(sample_trees(0, 5)))
    assert tiers == ["coarse", "fine"] and found == {value}
    assert getattr(jax.config, name) != value


def test_a_setting_of_the_process_that_changes_keeps_the_coarse_program(
    auto, batched, plan, monkeypatch
):
    function, name, jobs = eb.jit(loss_of(batched, [])), "jax_random_seed_offset", []
    with monkeypatch.context() as patch:
        patch.setattr(WORKER, "submit", lambda job: jobs.append(job) or Pending(1, []))
        for _ in range(REFINE_AFTER + 1):
            expected = function(PARAMS, plan)
    [job] = jobs
    jax.config.update(name, 7)
    try:
        with pytest.raises(eb.CompilationError, match=f"{name} of jax.config was"):
            job()
    finally:
        jax.config.update(name, 0)
    assert function(PARAMS, plan) == expected
    job()
    np.testing.assert_allclose(function(PARAMS, plan), expected, rtol=1e-5)
