"""The real engine on a CPU (`make test-vllm`); without vLLM these tests are skipped."""

import gc
import os
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from rookworld_rlvr.models import loading

from ..support import NOT_KEPT

HERE = Path(__file__).parent
collect_ignore = ["serve.py"]  # it imports vLLM, and has no tests
SETTINGS = {
    "TORCH_COMPILE_DISABLE": "1",  # compiling takes a minute and saves seconds
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_LOGGING_LEVEL": "WARNING",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if find_spec("vllm") is None:
        for item in items:
            if HERE in item.path.parents:
                item.add_marker(pytest.mark.skip("vLLM is not installed (make test-vllm)"))


@pytest.fixture(autouse=True)
def _engine_settings() -> Iterator[None]:
    """TRL and vLLM leave variables and a process group behind; the next test has its own."""
    with mock.patch.dict(os.environ, SETTINGS):
        yield
        gc.collect()
        if engine := sys.modules.get("vllm.distributed"):
            engine.cleanup_dist_env_and_memory()


@pytest.fixture
def vllm_trainer(make_trainer: Callable[..., Any]) -> Callable[..., Any]:
    """Build a trainer of a packaged model that samples by vLLM; keywords as of `make_trainer`."""

    def make(name: str = loading.PACKAGED_MODEL, **options: Any) -> Any:
        model = loading.load_model(name, dtype="float32")
        defaults = {**NOT_KEPT, "use_vllm": True, "vllm_gpu_memory_utilization": 0.05}
        return make_trainer(model, loading.load_tokenizer(name), **{**defaults, **options})

    return make
