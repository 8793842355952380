"""flash_attn_interface's functions (FlashAttention 3, Dao-AILab/flash-attention @0251105a) for the dry CUDA runtime, for
which the package has no library.

Nothing is computed: the blocks that hopper/flash_api.cpp asks the allocator for (mha_fwd, mha_bwd; Hopper, one split) are
asked for here, in its order, and what the package's autograd functions keep for the backward is kept
(hopper/flash_attn_interface.py, FlashAttnFunc, FlashAttnVarlenFunc).
"""
import importlib.machinery
import sys
import types

import batches


def flash_attn_func(q, k, v, softmax_scale=None, causal=False, qv=None, q_descale=None, k_descale=None, v_descale=None,
                    window_size=(-1, -1), attention_chunk=0, softcap=0.0, num_splits=1, pack_gqa=None,
                    deterministic=False, sm_margin=0, return_attn_probs=False):
    # pylint: disable=unused-argument
    return attention()(q, k, v, None, None, q.shape[1], causal, window_size, softcap)


def flash_attn_varlen_func(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, seqused_q=None,
                           seqused_k=None, softmax_scale=None, causal=False, qv=None, q_descale=None, k_descale=None,
                           v_descale=None, window_size=(-1, -1), attention_chunk=0, softcap=0.0, num_splits=1,
                           pack_gqa=None, deterministic=False, sm_margin=0, return_attn_probs=False):
    # pylint: disable=unused-argument
    return attention()(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, causal, window_size, softcap)


def up(value, multiple):
    return -(-value // multiple) * multiple


def kernel_width(head):
    return next(width for width in (64, 96, 128, 192, 256) if head <= width)


def masks(causal, window, length):
    """(causal, local) as both functions decide it."""
    left, right = (-1 if side >= length - 1 else side for side in window)
    right = 0 if causal else right
    causal = left < 0 and right == 0
    return causal, (left >= 0 or right >= 0) and not causal


def tile(width, causal, local, softcap):
    """(queries, keys) of the backward."""
    if width <= 64:
        queries = 96 if causal and softcap > 0 else 128
    else:
        queries = 80 if width == 128 and not (causal or local or softcap > 0) else 64
    return queries, 128 if width <= 128 else 96 if width <= 192 else 80


def attention():
    import torch

    class Attention(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v, starts_q, starts_k, longest, causal, window, softcap):
            longest = batches.longest if torch.is_tensor(longest) else longest  # a dry read is 0
            ctx.rest = (longest, causal, window, softcap)
            samples = q.shape[0] if starts_q is None else starts_q.numel() - 1
            causal, local = masks(causal, window, longest)
            out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
            rows = (q.shape[0], q.shape[2], q.shape[1]) if starts_q is None else (q.shape[1], q.shape[0])
            sums = torch.empty(rows, dtype=torch.float32, device=q.device)
            if causal or local or starts_q is not None:
                vectors = (0 if starts_q is None else 2) + (not local) + (causal or local)
                schedule = torch.empty(1 + up(samples, 4) * vectors, dtype=torch.int32, device=q.device)
                del schedule
            ctx.save_for_backward(q, k, v, out, sums, starts_q, starts_k)
            return out

        @staticmethod
        def backward(ctx, d_out):
            # The package's frame holds all of them, and d_out, until it returns.
            q, k, v, out, sums, starts, starts_k = ctx.saved_tensors
            longest, causal, window, softcap = ctx.rest
            d = [torch.empty_like(x) for x in (q, k, v)]
            causal, local = masks(causal, window, longest)
            heads, key_heads, width = q.shape[-2], k.shape[-2], kernel_width(q.shape[-1])
            queries, keys = tile(width, causal, local, softcap)

            def rows(multiple):
                if starts is None:
                    return q.shape[0] * up(q.shape[1], multiple)
                return up(q.shape[0] + (starts.numel() - 1) * multiple, multiple)

            def floats(count, make=torch.empty):
                return make(count, dtype=torch.float32, device=q.device)

            taken = [floats(heads * rows(queries)), floats(heads * rows(queries)),
                     floats(heads * rows(queries) * width)]
            if heads != key_heads:
                taken += [floats(key_heads * rows(keys) * width, torch.zeros) for _ in range(2)]
            samples = q.shape[0] if starts is None else starts.numel() - 1
            taken.append(torch.empty(-(-longest // queries) * samples * heads, dtype=torch.int32, device=q.device))
            del taken, out, sums, starts_k, d_out
            return (*d, None, None, None, None, None, None)

    return Attention.apply


def offer(found):
    """Makes Transformers' module find it as the package."""
    if 3 not in getattr(found, "FLASH_ATTENTION_COMPATIBILITY_MATRIX", {}):
        return
    package = types.ModuleType("flash_attn_interface")
    package.flash_attn_func, package.flash_attn_varlen_func = flash_attn_func, flash_attn_varlen_func
    package.flash_attn_with_kvcache = None
    package.__spec__ = importlib.machinery.ModuleSpec(package.__name__, None)
    sys.modules[package.__name__] = package
    found.is_flash_attn_3_available = lambda: True
    rows = found.FLASH_ATTENTION_COMPATIBILITY_MATRIX[3]
    rows["general_availability_check"] = rows["pkg_availability_check"] = lambda *a, **k: True
