"""flash_attn's functions (2.8) for the dry CUDA runtime, for which the package has no library.

PyTorch has a copy of its kernels (aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp),
which asks the allocator for the same blocks: these functions call that copy, and keep for the
backward what the package's own autograd functions keep (flash_attn/flash_attn_interface.py,
FlashAttnFunc, FlashAttnVarlenFunc). pad_input keeps indices and fills zeros, as
flash_attn/bert_padding.py does.
"""
import importlib.machinery
import importlib.metadata
import sys
import types

import batches
import flash_3_package


def flash_attn_func(q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1),
                    softcap=0.0, alibi_slopes=None, deterministic=False, return_attn_probs=False):
    del softcap, alibi_slopes, deterministic, return_attn_probs
    return attention()(q, k, v, None, None, q.shape[1], k.shape[1], dropout_p, softmax_scale, causal,
                       window_size)


def flash_attn_varlen_func(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k,
                           dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1),
                           softcap=0.0, alibi_slopes=None, deterministic=False,
                           return_attn_probs=False, block_table=None):
    del softcap, alibi_slopes, deterministic, return_attn_probs, block_table
    return attention()(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p,
                       softmax_scale, causal, window_size)


def attention():
    import torch

    class Attention(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v, starts_q, starts_k, longest_q, longest_k, dropout, scale, causal,
                    window):
            ctx.rest = (longest_q, longest_k, dropout, scale, causal, window)
            # A dry read of a number on the device is 0.
            sizes = [batches.longest if torch.is_tensor(n) else n for n in (longest_q, longest_k)]
            out, sums, state, _, _ = torch.ops.aten._flash_attention_forward(
                q, k, v, starts_q, starts_k, *sizes, dropout, causal, False, scale=scale,
                window_size_left=window[0], window_size_right=window[1])
            ctx.save_for_backward(q, k, v, out, sums, starts_q, starts_k, state)
            return out

        @staticmethod
        def backward(ctx, d_out):
            q, k, v, out, sums, starts_q, starts_k, state = ctx.saved_tensors
            longest_q, longest_k, dropout, scale, causal, window = ctx.rest
            sizes = [batches.longest if torch.is_tensor(n) else n for n in (longest_q, longest_k)]
            d = torch.ops.aten._flash_attention_backward(
                d_out, q, k, v, out, sums, starts_q, starts_k, *sizes, dropout, causal, state,
                state, scale=scale, window_size_left=window[0], window_size_right=window[1])
            return (*d, None, None, None, None, None, None, None, None)

    return Attention.apply


def pad_input(hidden_states, indices, batch, seqlen):
    import torch

    class Put(torch.autograd.Function):
        @staticmethod
        def forward(ctx, values, indices, rows):
            ctx.save_for_backward(indices)
            output = torch.zeros(rows, *values.shape[1:], device=values.device, dtype=values.dtype)
            output[indices] = values
            return output

        @staticmethod
        def backward(ctx, d_output):
            (indices,) = ctx.saved_tensors
            return d_output[indices], None, None

    rows = Put.apply(hidden_states, indices, batch * seqlen)
    return rows.reshape(batch, seqlen, *rows.shape[1:])


def offer():
    """Makes Transformers find it as the package; of 4.53 to 4.57 it is not modelled."""
    from transformers import modeling_flash_attention_utils as found
    if not hasattr(found, "FLASH_ATTENTION_COMPATIBILITY_MATRIX"):
        return
    package, padding = types.ModuleType("flash_attn"), types.ModuleType("flash_attn.bert_padding")
    package.flash_attn_func, package.flash_attn_varlen_func = flash_attn_func, flash_attn_varlen_func
    package.flash_attn_with_kvcache, package.__version__ = None, "2.8.3"
    padding.pad_input, padding.unpad_input = pad_input, None  # queries are as long as keys
    add_modules(package, padding)
    found.is_flash_attn_2_available = lambda: True
    found.is_flash_attn_4_available = lambda: False  # a package of the same name
    rows = found.FLASH_ATTENTION_COMPATIBILITY_MATRIX[2]
    rows["general_availability_check"] = rows["pkg_availability_check"] = lambda *a, **k: True
    flash_3_package.offer(found)
    answer_for_the_data(found)


def add_modules(*modules):
    for module in modules:
        module.__spec__ = importlib.machinery.ModuleSpec(module.__name__, None)
        sys.modules[module.__name__] = module


def offer_to_older():
    """Releases before 4.53 look for the package when a model is imported, and for its release in what is installed. Rows that
    hold padding, which it would unpad, are not modelled."""
    package, padding = types.ModuleType("flash_attn"), types.ModuleType("flash_attn.bert_padding")
    package.flash_attn_func, package.flash_attn_varlen_func = flash_attn_func, flash_attn_varlen_func
    padding.pad_input, padding.unpad_input, padding.index_first_axis = pad_input, None, None
    add_modules(package, padding)
    version = importlib.metadata.version
    importlib.metadata.version = lambda name: "2.6.3" if name == "flash_attn" else version(name)


def answer_for_the_data(found):
    """What _get_unpad_data and prepare_fa_kwargs_from_position_ids read from the device: where
    tokens are that are no padding, where samples begin. The operators run, on zeros."""
    import torch
    unpad, starts, packed = (found._get_unpad_data, found.prepare_fa_kwargs_from_position_ids,
                             found._is_packed_sequence)
    nonzero = torch.nonzero

    def filled(count):
        def answer(tensor, *args, **kwargs):
            nonzero(tensor)
            return torch.empty(count, 1, dtype=torch.int64, device=tensor.device)
        return answer

    def unpadded(mask):
        torch.nonzero = filled(batches.real_tokens)
        try:
            indices, cumulative, _ = unpad(mask)
        finally:
            torch.nonzero = nonzero
        return indices, cumulative, batches.longest

    def begins(position_ids):
        method = torch.Tensor.nonzero
        torch.Tensor.nonzero = filled(batches.samples)
        try:
            return starts(position_ids)
        finally:
            torch.Tensor.nonzero = method

    def is_packed(position_ids, batch_size):
        packed(position_ids, batch_size)
        return batches.asked == "flattened"

    found._get_unpad_data = unpadded
    found.prepare_fa_kwargs_from_position_ids = begins
    found._is_packed_sequence = is_packed
