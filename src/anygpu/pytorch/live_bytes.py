"""Counting the bytes that are alive while torch runs: storages as they are made, and as they die.

The first half models what torch's kernels allocate beside their results, which fake tensors do not show; `LiveBytes`
counts both while it is active.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

# -- what torch's kernels allocate beside their results, where that is much
#
# Operations on fake tensors show results only. On a processor, torch's convolutions are oneDNN's, which copies tensors
# into layouts of its own and back. The formulas here were read off a counting allocator, for torch 2.13 with AVX-512;
# `python -m benchmarks.pytorch_memory` compares them with whole modules. Libraries of cards (cuDNN, cuBLAS) take
# workspaces too; they are not modelled, and no figure here was ever measured on a card.


Arguments = Sequence[Any]

_aten = torch.ops.aten
#: oneDNN keeps channels in blocks of as many.
_BLOCK = 16
#: It takes an image with fewer channels as it is.
_FEW_CHANNELS = 8


def scratch_bytes(operation: Any, arguments: Arguments, result: Any) -> int:
    """Bytes that the operation takes beside its results and returns when it ends."""
    model = _TRANSIENT.get(operation)
    return 0 if model is None else max(0, model(arguments, result))


def hidden_bytes(operation: Any, arguments: Arguments, result: Any) -> Mapping[int, int]:
    """Real sizes of results in bytes, by position, where fakes have smaller ones."""
    if operation in _FULL_LOSSES and result.dim() == 0:
        return {0: _bytes(arguments[0])}
    if operation is not _aten.mkldnn_rnn_layer.default:
        return {}
    # Gates and states of every step of time, and room for their gradients.
    return {
        3: _recurrent_units(arguments) * (6 * max(_features(arguments), _hidden(arguments)) + 10 * _hidden(arguments))
    }


def compiled_bytes(operation: Any, arguments: Arguments) -> int:
    """Bytes of the code that is compiled for such an operation when it first runs, and kept with the process."""
    if operation not in _MATRIX_PRODUCTS:
        return 0
    first = arguments[-1]
    return _COMPILED if _on_processor(first) and first.dtype in (torch.bfloat16, torch.float16) else 0


#: Bytes of a product of matrices of fewer bits, for each combination of shapes.
_COMPILED = 600_000
_MATRIX_PRODUCTS = frozenset(
    {_aten.mm.default, _aten.addmm.default, _aten.bmm.default, _aten.baddbmm.default, _aten.mv.default}
)

#: Losses whose mean lies in memory for the losses of all elements.
_FULL_LOSSES = frozenset(
    {
        _aten.mse_loss.default,
        _aten.smooth_l1_loss.default,
        _aten.binary_cross_entropy.default,
        _aten.soft_margin_loss.default,
    }
)


def _bytes(tensor: torch.Tensor) -> int:
    return int(tensor.numel() * tensor.element_size())


def _on_processor(tensor: torch.Tensor) -> bool:
    return bool(tensor.device.type == "cpu")


def _blocked(tensor: torch.Tensor, channels: int) -> int:
    """Bytes of a copy in oneDNN's layout."""
    return _bytes(tensor) * (-(-channels // _BLOCK) * _BLOCK) // max(channels, 1)


def _keeps_layout(tensor: torch.Tensor) -> bool:
    """Whether oneDNN computes with it as it lies."""
    if tensor.dim() == 4:
        return bool(tensor.is_contiguous(memory_format=torch.channels_last)) and tensor.shape[1] > 1
    if tensor.dim() == 5:
        return bool(tensor.is_contiguous(memory_format=torch.channels_last_3d)) and tensor.shape[1] > 1
    return False


def _convolution(arguments: Arguments, result: Any) -> int:
    """Bytes of the workspace that a convolution takes on the processor."""
    x, weight, transposed = arguments[0], arguments[1], arguments[6]
    if not _on_processor(x):
        return 0
    w, y = _bytes(weight), _bytes(result)
    if _keeps_layout(x):
        return 2 * w
    if transposed:
        return max(_bytes(x), y) + y
    if x.dtype != torch.float32 and weight.shape[1] > 1:
        return 2 * y
    x_copy = 0 if x.shape[1] < _FEW_CHANNELS else _blocked(x, x.shape[1])
    y_copy = _blocked(result, result.shape[1])
    return max(x_copy + w + y_copy, w + y_copy + y) - y


def _convolution_backward(arguments: Arguments, result: Any) -> int:
    """Bytes of the workspace that the gradient of a convolution takes on the processor."""
    gradient, x, weight, stride, transposed, mask = (arguments[i] for i in (0, 1, 2, 4, 7, 10))
    if not _on_processor(x):
        return 0
    w = _bytes(weight)
    if _keeps_layout(x):
        return 3 * w
    of_x = _bytes(x) if mask[0] else 0
    y_copy, x_copy = _blocked(gradient, gradient.shape[1]), _blocked(x, x.shape[1])
    if transposed and gradient.shape[1] < _FEW_CHANNELS:
        y_copy = 0
    kept = of_x + w
    of_input = y_copy + x_copy + w if mask[0] and not transposed else 0
    x_taken = 0 if x.shape[1] < _FEW_CHANNELS else x_copy
    again = _bytes(gradient) if mask[0] and x_taken and any(step > 1 for step in stride) and not transposed else 0
    of_weight = of_x + max(x_taken + y_copy + again + w, 2 * w) if mask[1] else 0
    return max(of_input, of_weight) - kept


def _batch_norm_backward(arguments: Arguments, result: Any) -> int:
    """Bytes that the gradient of a batch norm takes on the processor."""
    return _bytes(arguments[1]) if _on_processor(arguments[1]) else 0


def _elementwise_loss(arguments: Arguments, result: Any) -> int:
    """The losses of all elements, before their mean."""
    return 0 if result.dim() else _bytes(arguments[0])


def _flash_attention(arguments: Arguments, result: Any) -> int:
    """Bytes that attention takes on the processor for types other than float32: a copy of keys and values."""
    query, key = arguments[0], arguments[1]
    return 0 if query.dtype == torch.float32 else 2 * _bytes(key)


def _flash_attention_backward(arguments: Arguments, result: Any) -> int:
    """Bytes of the copy of a query that does not lie as the kernel wants it."""
    query = arguments[1]
    return 0 if query.transpose(1, 2).is_contiguous() else _bytes(query)


def _recurrent_units(arguments: Arguments) -> int:
    """Bytes of one number for each step of time and each row."""
    x = arguments[0]
    return int(x.shape[0] * x.shape[1] * x.element_size())


def _features(arguments: Arguments) -> int:
    return int(arguments[0].shape[2])


def _hidden(arguments: Arguments) -> int:
    return int(arguments[2].shape[1])


def _recurrent(arguments: Arguments, result: Any) -> int:
    """Bytes that a recurrent layer takes: its gates, and its weights in another layout."""
    weights = sum(_bytes(weight) for weight in arguments[1:5])
    return 4 * _recurrent_units(arguments) * _hidden(arguments) + weights


def _recurrent_backward(arguments: Arguments, result: Any) -> int:
    """Bytes that the gradient of a recurrent layer takes."""
    return _recurrent(arguments, result) + _recurrent_units(arguments) * _hidden(arguments)


_TRANSIENT: dict[Any, Callable[[Arguments, Any], int]] = {
    _aten.convolution.default: _convolution,
    _aten.convolution_backward.default: _convolution_backward,
    _aten.native_batch_norm_backward.default: _batch_norm_backward,
    _aten.mse_loss.default: _elementwise_loss,
    _aten.smooth_l1_loss.default: _elementwise_loss,
    _aten.huber_loss.default: _elementwise_loss,
    _aten.logsumexp.default: lambda arguments, result: _bytes(arguments[0]),
    _aten._scaled_dot_product_flash_attention_for_cpu.default: _flash_attention,
    _aten._scaled_dot_product_flash_attention_for_cpu_backward.default: _flash_attention_backward,
    _aten.mkldnn_rnn_layer.default: _recurrent,
    _aten.mkldnn_rnn_layer_backward.default: _recurrent_backward,
}


#: Allocators round up to multiples of this.
_GRAIN = {"cpu": 64, "cuda": 512}

_prim = torch.ops.prim


class _Storage(NamedTuple):
    """A storage that is alive: its bytes, who made it, and the reference that tells of its death."""

    bytes: int
    owner: str | None
    reference: weakref.ref[Any]


class LiveBytes(TorchDispatchMode):  # type: ignore[misc, no-any-unimported, unused-ignore]
    """While it is active, every storage that an operation makes counts until it dies.

    A storage belongs to the `owner` of the moment in which it is made. `now` and `peak` are in bytes, rounded up as
    allocators do.
    """

    def __init__(self) -> None:
        super().__init__()
        self._storages: dict[int, _Storage] = {}
        self._compiled: set[Any] = set()
        self.now = 0
        self.peak = 0
        self.operations = 0
        self.flops = 0
        #: Floating-point operations and bytes that were made, by owner.
        self.work: dict[str | None, tuple[int, int]] = {}
        self.owner: str | None = None
        #: Whether a backward pass runs.
        self.is_backward = False

    def add(self, tensor: torch.Tensor, size: int | None = None) -> None:
        """Count the storage of `tensor`, unless it is known; `size` if it is not the storage's own."""
        storage = tensor.untyped_storage()
        key = id(storage)
        if key in self._storages:
            return
        grain = _GRAIN.get(tensor.device.type, 512)
        bytes_ = -(-(storage.nbytes() if size is None else size) // grain) * grain
        # The reference holds no reference to us: a storage may outlive the count.
        reference = weakref.ref(storage, _Death(weakref.ref(self), key))
        self._storages[key] = _Storage(bytes_, self.owner, reference)
        self.now += bytes_
        if size is not None or bytes_:
            flops, made = self.work.get(self.owner, (0, 0))
            self.work[self.owner] = flops, made + bytes_

    def _compile(self, operation: Any, arguments: tuple[Any, ...]) -> None:
        """Count the code of an operation once for the shapes that it is compiled for."""
        size = compiled_bytes(operation, arguments)
        if size:
            key = (operation, *((tuple(one.shape), one.stride()) for one in arguments if isinstance(one, torch.Tensor)))
            if key not in self._compiled:
                self._compiled.add(key)
                self.now += size

    def _dead(self, key: int) -> None:
        """Takes off the bytes of a storage that has died."""
        storage = self._storages.pop(key, None)
        if storage is not None:
            self.now -= storage.bytes

    def owned(self, owner: str, *, without: Iterable[torch.Tensor]) -> int:
        """Living bytes of an owner, except the storages of some tensors."""
        excepted = {id(tensor.untyped_storage()) for tensor in without}
        return sum(one.bytes for key, one in self._storages.items() if one.owner == owner and key not in excepted)

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run one operation, and add the memory of its results and its workspace."""
        result = operation(*args, **(kwargs or {}))
        if operation is _prim.device.default:  # the question for a tensor's device comes as an operation
            return result
        self.operations += 1
        self._compile(operation, args)
        results = result if isinstance(result, (tuple, list)) else (result,)
        hidden = hidden_bytes(operation, args, result)
        for position, one in enumerate(results):
            if isinstance(one, torch.Tensor):
                self.add(one, hidden.get(position))
        if not (self.is_backward and _adds_gradients(operation, args)):
            self.peak = max(self.peak, self.now + scratch_bytes(operation, args, result))
        count = flop_registry.get(operation._overloadpacket)
        if count is not None:
            flops = int(count(*args, **(kwargs or {}), out_val=result))
            self.flops += flops
            before, made = self.work.get(self.owner, (0, 0))
            self.work[self.owner] = before + flops, made
        return result


def _adds_gradients(operation: Any, arguments: tuple[Any, ...]) -> bool:
    """Autograd adds gradients from several places into the first of them; with fakes it makes a third."""
    return (
        operation is _aten.add.Tensor
        and isinstance(arguments[1], torch.Tensor)
        and arguments[0].shape == arguments[1].shape
        and arguments[0].is_contiguous()
    )


class _Death:
    """The callback of a storage's reference; it does not keep the count alive."""

    __slots__ = ("_count", "_key")

    def __init__(self, count: weakref.ref[LiveBytes], key: int) -> None:
        self._count, self._key = count, key

    def __call__(self, _: object) -> None:
        count = self._count()
        if count is not None:
            count._dead(self._key)
