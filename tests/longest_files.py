"""Test files that take many seconds; processes run them first.

Otherwise one process would still run such a file when the others are done.
"""

LONGEST = (
    "models/test_batched.py",
    "executor/test_coarse.py",
    "executor/test_switch.py",
    "experiments/test_load_test.py",
    "experiments/test_gpu_report.py",
    "executor/test_shared_loops.py",
    "executor/test_random_programs.py",
    "cell/test_hoisting.py",
    "cli/test_ctrl_c.py",
    "test_guides.py",
    "test_sparse.py",
    "loader/test_processes.py",
    "benchmark/test_procedure.py",
    "plan/test_random_numbers.py",
    "executor/test_streams.py",
    "gradient/test_unread_outputs.py",
    "benchmark/test_staged_systems.py",
    "flax/test_linen_cells.py",
    "test_padded_instances.py",
    "stream/test_slice_variants.py",
    "cell/test_random_cells.py",
    "test_pickling.py",
    "executor/test_isolation.py",
    "test_import_time.py",
    "flax/test_nnx_cells.py",
    "gradient/test_gradient_rules.py",
    "flax/test_training.py",
    "compilation/test_cache.py",
    "experiments/test_train_sentiment.py",
    "test_docstrings.py",
    "docs/test_pages.py",
    "compilation/test_jit.py",
)
