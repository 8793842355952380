// How our own runtime keeps the frozen weights of linear modules packed (--quantize nf4, nf4-dq,
// int8, int8-affine).
//
// Packed are those that models::packs_module names. Of a unit they are a flat part of bytes
// (sharding.h), one weight after another in the order of the parameter table. Of each: the codes;
// a scale for each block; where scales are in 8 bits, their scales, and the one offset; the code
// of 0 for each block (int8-affine). Of int8 a block is a row, as the matrix is stored. Each of
// these begins at a multiple of kFlatAlignment. So a part is cut, stored and gathered as bytes,
// wherever blocks end. What the codes stand for are constants of the kernels and takes no memory.
// Values are those that the model would have in the compute dtype, packed in the order in which
// they are stored: GPT-2's [in, out] by its own rows (bitsandbytes transposes it first).
//
// A GEMM makes the weight anew in the op that reads it (forward, made again, and backward of its
// input), whole and in the compute dtype, in a temporary that dies with the op
// (LinearNames::dequantized). Nothing of it is saved.
#pragma once

#include "models/decisions/sharding.h"
#include "models/storages.h"

namespace plimsoll::models::decisions {

// Error{unsupported}, Error{bad_input}: what the runtime does not have of it.
inline void check_packed(const Strategy& s) {
  if (!s.quantize) return;
  const Quantization& q = *s.quantize;
  check(q.storage->in_runtime, ErrorKind::unsupported, [&] {
    return "--quantize " + std::string(q.storage->name) +
           ": plimsoll's runtime has nf4, nf4-dq, int8 and int8-affine (stack pytorch is planned)";
  });
  check(q.held_in == DType::uint8, ErrorKind::bad_input,
        "--quant-storage: plimsoll shards packed weights as bytes (uint8)");
  check(!q.kbit_prep.value_or(false), ErrorKind::bad_input,
        "--kbit-prep yes: plimsoll keeps what is not packed in the compute dtype");
}

}  // namespace plimsoll::models::decisions
