// The flash_attn package's kernels for samples of several lengths, as Transformers calls them
// (modeling_flash_attention_utils.py, _flash_attention_forward).
//
// Rows with padding: in each layer _upad_input finds where tokens stand that are none (indices, of
// which autograd keeps one tensor for all) and where samples begin, and copies these tokens of
// keys, values and queries; the kernel keeps the copies, and pad_input writes its result among
// zeros. One row of several samples: the layer finds out from position_ids where they begin.
#include "planner/kernels_of_op.h"
#include "planner/stacks/pytorch/attention.h"

namespace plimsoll::planner::pytorch {

void AttentionWriter::varlen_operands(const AttentionNames& names, const AttentionInput& in,
                                      AttentionSaved& s) {
  s.starts = make(names.starts, tokens_.samples + 1, DType::int32);
  if (!unpads()) {
    s.longest = make(names.longest, 1, DType::int32);
    return;
  }
  auto found = op(names.unpadded);
  found.read(model_mask()).write(s.starts);
  const DType dtype = kernel(in);
  s.indices = make(names.indices, tokens_.real, DType::int64);
  found.write(s.indices).read(in.q).read(in.k).read(in.v);
  // Transformers casts to the dtype of autocast, in the order of queries, keys, values.
  casts_ = {in.q, in.k, in.v};
  const auto narrow = [&](TensorId& x, const char* name, SymInt values, DType have) {
    if (have == dtype) return;
    x = make(name, values, dtype);
    found.write(x);
  };
  narrow(casts_[0], names.q.cast, q_values(), in.dtype);
  narrow(casts_[1], names.k.cast, kv_values(), in.dtype);
  narrow(casts_[2], names.v.cast, kv_values(), in.v_dtype);
  s.k = make(names.k.unpadded, real(kv_values()), dtype);
  s.v = make(names.v.unpadded, real(kv_values()), dtype);
  s.q = make(names.q.unpadded, real(q_values()), dtype);
  found.write(s.k).write(s.v).write(s.q);
  b_.work().moves(2 * bytes(real(q_values() + 2 * kv_values()), dtype).real());
}

// Python's frames hold the casts, the copies and where samples begin until they return.
TensorId AttentionWriter::pad(const AttentionNames& names, const AttentionInput& in,
                              const AttentionSaved& s) {
  const TensorId out = make(names.out, q_values(), kernel(in));
  op(names.out)
      .read(s.fused_out)
      .read(s.indices)
      .read(casts_[0])
      .read(casts_[1])
      .read(casts_[2])
      .read(s.q)
      .read(s.k)
      .read(s.v)
      .read(s.starts)
      .write(out);
  return out;
}

TensorId AttentionWriter::unpadded_gradient(const AttentionNames& names, const AttentionSaved& s,
                                            TensorId d_out) {
  const TensorId d = temporary(names.grad_unpadded, real(q_values()), regime_.compute);
  op(names.grad_unpadded).read(d_out).read(s.indices).write(d);
  return d;
}

// IndexBackward: index_put with accumulation into zeros, not in place. It sorts the indices
// (ATen/native/cuda/Indexing.cu, index_put_with_sort_kernel): four arrays of int64 at once.
TensorId AttentionWriter::pad_gradient(const char* name, const AttentionSaved& s, SymInt values,
                                       DType dtype, TensorId d) {
  const TensorId padded = temporary(name, values, dtype);
  auto put = op(name);
  put.read(d).read(s.indices);
  KernelsOfOp kernels(b_);
  kernels.take(bytes(values, dtype));
  put.write(padded);
  kernels.birth(padded, bytes(values, dtype));
  for (int array = 0; array < 4; ++array) kernels.take(bytes(tokens_.real, DType::int64));
  kernels.finish(put);
  return padded;
}

// Queries were copied last.
void AttentionWriter::pad_gradients(const AttentionNames& names, const AttentionSaved& s,
                                    DType dtype, Grads& d) {
  d[0] = pad_gradient(names.q.grad_padded, s, q_values(), dtype, d[0]);
  d[2] = pad_gradient(names.v.grad_padded, s, kv_values(), dtype, d[2]);
  d[1] = pad_gradient(names.k.grad_padded, s, kv_values(), dtype, d[1]);
}

}  // namespace plimsoll::planner::pytorch
