"""The compiler that `gpu_programs` runs, in a separate process.

It compiles for a GPU that need not be there.
"""

import os

# JAX would look for the driver of a GPU.
os.environ["JAX_SKIP_CUDA_CONSTRAINTS_CHECK"] = "1"

from jax._src import compiler
from jax._src.interpreters import mlir
from jax.experimental import topologies
from jaxlib import _jax
from jaxlib.mlir import ir

# The facts of an H100 with 80 GB that XLA's decisions depend on.
_H100 = """
gpu_device_info {
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_core: 233472
  shared_memory_per_block_optin: 232448
  threads_per_core_limit: 2048
  core_count: 132
  fpus_per_core: 128
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
  clock_rate_ghz: 1.98
  memory_bandwidth: 3352320000000
  l2_cache_size: 52428800
  device_memory_size: 84942979072
  cuda_compute_capability { major: 9 }
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 9 patch: 4 }
device_description_str: "NVIDIA H100 80GB HBM3"
"""


def compiled(module):
    """Returns the program of a serialized StableHLO module, as text, and the bytes of
    memory that it allocates besides its arguments and results."""
    topology = topologies.get_topology_desc(
        "1x1x1", "cuda", topology="1x1x1", target_config=_H100
    )
    (device,) = topology.devices
    context = mlir.make_ir_context()
    with context, ir.Location.unknown(context):
        parsed = ir.Module.parse(module)
        parsed.operation.walk(_skip_copy)
    options = compiler.get_compile_options(
        num_replicas=1, num_partitions=1, backend=device.client
    )
    devices = _jax.DeviceList((device,))
    executable = device.client.compile(parsed, devices, options)
    text = "\n".join(one.to_string() for one in executable.hlo_modules())
    return text, executable.get_compiled_memory_stats().temp_size_in_bytes


def _skip_copy(operation):
    """Removes copies of variables, which TensorFlow writes and StableHLO lacks."""
    if operation.name == "mhlo.copy":
        operation.result.replace_all_uses_with(operation.operands[0])
        operation.erase()
    return ir.WalkResult.ADVANCE
