"""vLLM as a server: requests, weights, positions. A file replaces NCCL, which needs GPUs."""

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
import torch
from safetensors.torch import save_file

from rookworld_rlvr.common.errors import RookWorldError
from rookworld_rlvr.models.loading import PACKAGED_MODEL, resolve_model_path
from rookworld_rlvr.training.preflight import measure_parity, mixed_length_prompts

from ..support import REPOSITORY
from .conftest import SETTINGS
from .test_colocate import CUT, changed_weights, gap

Make = Callable[..., Any]
TAKES_FILES = "tests.vllm.serve.TakesFiles"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server of the packaged model, as `trl vllm-serve` starts it."""
    pytest.importorskip("vllm")
    from trl.scripts.vllm_serve import ScriptArguments, build_command

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    model = resolve_model_path(PACKAGED_MODEL)
    keys = {"dtype": "float32", "gpu_memory_utilization": 0.05, "enforce_eager": True}
    command = build_command(ScriptArguments(model=model, host="127.0.0.1", port=port, **keys))
    command = [*command[command.index("serve") :], "--worker-extension-cls", TAKES_FILES]
    own = {"PYTHONPATH": str(REPOSITORY), "VLLM_SERVER_DEV_MODE": "1"}
    log = tmp_path_factory.mktemp("server") / "log"
    with log.open("w") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.vllm.serve", *command],
            env={**os.environ, **SETTINGS, **own},
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    try:
        address, is_up = f"http://127.0.0.1:{port}", False
        while not is_up:
            assert process.poll() is None, log.read_text()[-4000:]
            time.sleep(1)
            with contextlib.suppress(requests.ConnectionError):
                is_up = requests.get(f"{address}/health", timeout=5).ok
        yield address
    finally:
        process.terminate()
        process.wait(60)


@pytest.fixture
def served(
    server: str, vllm_trainer: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Make:
    """Build a trainer that samples by the server; keywords as of `vllm_trainer`."""
    client = "trl.generation.vllm_client.VLLMClient"

    def update(self: Any, metadata: Any, named: Iterator[tuple[str, torch.Tensor]]) -> None:
        weights = {name: tensor.clone() for name, tensor in named}
        assert [name for name, *_ in metadata] == list(weights)
        save_file(weights, tmp_path / "weights.safetensors")
        body = {"method": "take_file", "args": [str(tmp_path / "weights.safetensors")]}
        self.session.post(f"{self.base_url}/collective_rpc", json=body).raise_for_status()

    monkeypatch.setattr(f"{client}.init_communicator", lambda self, device: None)
    monkeypatch.setattr(f"{client}.update_named_params", update)
    monkeypatch.setattr("rookworld_rlvr.training.exchanged.vllm_faults", lambda args: [])
    keys = {"vllm_mode": "server", "vllm_server_base_url": server}
    return lambda **options: vllm_trainer(**{**keys, **options})


@pytest.mark.parametrize("options", [{}, CUT], ids=["", "cut"])
def test_the_preflight_asks_the_server(served: Make, options: dict[str, Any]) -> None:
    trainer = served(preflight=False, **options)
    assert measure_parity(trainer, mixed_length_prompts(trainer)).faults(1e-4) == []


def test_what_is_sampled_follows_the_weights(served: Make) -> None:
    trainer = served(preflight=False)
    gap(trainer)  # the server may have the weights of another test
    with changed_weights(trainer):
        assert gap(trainer) > 0.1
    assert gap(trainer) < 1e-4


def test_without_a_server_there_is_one_message(served: Make) -> None:
    with pytest.raises(RookWorldError, match=r"vllm_mode: server: .* can't be reached"):
        served(vllm_server_base_url="http://127.0.0.1:9", vllm_server_timeout=0.0)
