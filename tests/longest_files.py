"""Files of many seconds: processes take them first.

So none of them has one left when the others are done.
"""

LONGEST = (
    "executor/test_isolation.py",
    "models/test_batched.py",
    "gradient/test_gradient_rules.py",
    "test_pickling.py",
    "models/test_lattice_workloads.py",
    "benchmark/test_procedure.py",
    "benchmark/test_staged_systems.py",
    "plan/test_random_numbers.py",
    "loader/test_loader.py",
    "test_guides.py",
    "executor/test_packed_parameters.py",
    "flax/test_linen_cells.py",
    "test_lists.py",
    "test_docstrings.py",
    "graph/test_cells_in_cells.py",
    "graph/test_external_inputs.py",
    "compilation/test_jit.py",
)
