"""What a GPU's host would wait for, counted on a CPU.

Tensors that would be on the GPU are marked by their storage, and say ``cpu:0`` where others say ``cpu``.
What is computed from them is marked, too. Counted is what needs their numbers: reading some, counting
where they are not 0, and copies, unless these need no waiting.
"""

import sys
from collections import Counter
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

GPU = torch.device("cpu", 0)
OWNERS = ("rookworld_rlvr", "trl", "transformers", "accelerate")
SIZES = (
    "nonzero",
    "_unique2",
    "unique_dim",
    "unique_consecutive",
    "masked_select",
    "equal",
    "_local_scalar_dense",
)

MAY_MIX = ("copy_", "_to_copy", "index", "index_put", "index_put_")


def is_marked(tensor: Any) -> bool:
    return isinstance(tensor, torch.Tensor) and hasattr(tensor.untyped_storage(), "on_gpu")


def mark(tensor: torch.Tensor) -> torch.Tensor:
    tensor.untyped_storage().on_gpu = True  # type: ignore[attr-defined]
    return tensor


class Waits(TorchDispatchMode):
    """Counts, for as long as it is entered.

    Attributes:
        reads: Waits for numbers of the GPU, by the package and the line that ask for them.
        copies: Waits for the end of a copy to it, likewise.
        mixed: Operators on tensors of both, which a GPU refuses, likewise.
    """

    def __init__(self, *models: torch.nn.Module) -> None:
        super().__init__()
        self.reads: Counter[tuple[str, str]] = Counter()
        self.copies: Counter[tuple[str, str]] = Counter()
        self.mixed: Counter[tuple[str, str]] = Counter()
        self._functions = _Functions(self)
        weights = [part for one in models for part in (*one.parameters(), *one.buffers())]
        self._kept = [
            mark(part).untyped_storage() for part in weights
        ]  # a mark lasts as long as it

    def __enter__(self) -> Any:
        found = super().__enter__()
        self._functions.__enter__()
        return found

    def __exit__(self, *error: Any) -> None:
        self._functions.__exit__(*error)
        super().__exit__(*error)

    def of(self, owner: str) -> tuple[int, int]:
        """Reads and copies of a package."""
        return tuple(  # type: ignore[return-value]
            sum(number for (package, _), number in found.items() if package == owner)
            for found in (self.reads, self.copies)
        )

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        on_gpu = any(map(is_marked, given))
        name = func.overloadpacket.__name__
        if on_gpu:
            by_truth = sum(
                leaf.dtype in (torch.bool, torch.uint8) and is_marked(leaf)
                for leaf in (
                    tree_leaves(args[1]) if name in ("index", "index_put", "index_put_") else ()
                )
                if isinstance(leaf, torch.Tensor)
            )
            repeats = name == "repeat_interleave" and kwargs.get("output_size") is None
            self.reads[here()] += by_truth + (name in SIZES or repeats)
            others = [leaf for leaf in given if leaf.dim() and not is_marked(leaf)]
            self.mixed[here()] += bool(others) and name not in MAY_MIX
        out = func(*args, **kwargs)
        if on_gpu or kwargs.get("device") == GPU:
            for leaf in tree_leaves(out):
                if isinstance(leaf, torch.Tensor):
                    mark(leaf)
        return out


class _Functions(TorchFunctionMode):
    """What reaches no operator on a CPU: copies from one device to the other, and lists of numbers."""

    def __init__(self, waits: Waits) -> None:
        super().__init__()
        self._waits = waits

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        first = args[0] if args else None
        if func == torch.Tensor.device.__get__:  # type: ignore[attr-defined]
            return GPU if is_marked(first) else torch.device("cpu")
        if func in (torch.Tensor.tolist, torch.Tensor.numpy, torch.Tensor.cpu) and is_marked(first):
            self._waits.reads[here()] += 1
            return func(unmarked(first))
        if func is torch.Tensor.to:
            to = next(
                (x for x in (*args[1:], kwargs.get("device")) if isinstance(x, torch.device | str)),
                None,
            )
            blocks = not kwargs.get("non_blocking")
            if to is not None and is_marked(first) and torch.device(to) != GPU:
                self._waits.reads[here()] += 1
                return func(unmarked(first), *args[1:], **kwargs)
            if to is not None and not is_marked(first) and torch.device(to) == GPU:
                self._waits.copies[here()] += blocks
                return mark(func(first, *args[1:], **kwargs).clone())
        out = func(*args, **kwargs)
        if func in (torch.tensor, torch.as_tensor) and kwargs.get("device") == GPU:
            if not is_marked(first):
                self._waits.copies[here()] += 1
            mark(out)
        return out


def unmarked(tensor: torch.Tensor) -> torch.Tensor:
    """A copy that counts as one of the host."""
    with torch._C.DisableTorchFunction(), torch.utils._python_dispatch._disable_current_modes():
        return tensor.detach().clone()


def here() -> tuple[str, str]:
    """The package that calls, and where; ``other`` for none of those that a step is made of."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        path = frame.f_code.co_filename
        for owner in OWNERS:
            if f"/{owner}/" in path:
                return owner, f"{path.rpartition(f'/{owner}/')[2]}:{frame.f_lineno}"
        frame = frame.f_back
    return "other", ""
