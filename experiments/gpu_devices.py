"""XLA's descriptions of GPUs, used to compile for a GPU without having one."""

# Shared by both GPUs: threads per warp, and limits of a block and a grid.
_LIMITS = """
  threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: 2048
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  thread_dim_limit_x: 1024 thread_dim_limit_y: 1024 thread_dim_limit_z: 64
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
  shared_memory_per_block: 49152
  runtime_version: "12.9.0" driver_version: "12.9.0"
  compile_time_toolkit_version: "12.9.0"
"""


def _describe(name: str, own: str) -> str:
    """Returns XLA's description of a device, a `GpuTargetConfigProto` as text."""
    return (
        f"gpu_device_info {{ {_LIMITS} {own} }}\n"
        'platform_name: "CUDA"\n'
        "dnn_version_info { major: 9 minor: 10 patch: 0 }\n"
        f'device_description_str: "{name}"\n'
    )


DEVICES = {
    "H200": _describe(
        "NVIDIA H200",
        "cuda_compute_capability { major: 9 } core_count: 132 fpus_per_core: 128"
        " clock_rate_ghz: 1.98 memory_bandwidth: 4800000000000"
        " l2_cache_size: 52428800 device_memory_size: 151397597184"
        " shared_memory_per_core: 233472 shared_memory_per_block_optin: 232448",
    ),
    "A100": _describe(
        "NVIDIA A100-SXM4-80GB",
        "cuda_compute_capability { major: 8 } core_count: 108 fpus_per_core: 64"
        " clock_rate_ghz: 1.41 memory_bandwidth: 2039040000000"
        " l2_cache_size: 41943040 device_memory_size: 85100068864"
        " shared_memory_per_core: 167936 shared_memory_per_block_optin: 166912",
    ),
}
