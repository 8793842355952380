// Frozen weights in 4 or 8 bits: a code for each value, and a scale for each block of values.
//
// NF4: a block's scale is the largest of its magnitudes; doubly quantized, these scales less their
// mean are in 8 bits, in blocks of their own.
//
// Dettmers, Pagnoni, Holtzman, Zettlemoyer, "QLoRA: Efficient Finetuning of Quantized LLMs", arXiv
// 2305.14314. Bytes and scales are those of bitsandbytes 0.50.2's portable backend (functional.py,
// quantize_4bit; backends/default/ops.py). Its CUDA kernels multiply by the inverse of the scale in
// a last block that is not full too, and its compiled CPU library looks codes of 8 bits up in a
// table of cells.
//
// Symmetric 8 bits: a block is a row of the matrix, and its largest magnitude is 127. Bytes and
// scales are LLM.int8()'s (Dettmers et al., arXiv 2208.07339; backends/default/ops.py,
// int8_vectorwise_quant with no threshold; int8_vectorwise_dequant). bitsandbytes' CUDA kernel
// divides fast there (csrc/kernels.cu, kInt8VectorQuant): values half-way between two codes may
// have the other one.
// Affine 8 bits: a block's range, stretched to hold 0, is cut into 255 steps, and 0 is a code of
// its own (Jacob et al., "Quantization and Training of Neural Networks for Efficient
// Integer-Arithmetic-Only Inference", arXiv 1712.05877, equations 1 and 13).
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "kernels/tensor_view.h"

namespace plimsoll::kernels {

inline constexpr std::int64_t kPackedBlock = 64;  // values that share a scale
inline constexpr std::int64_t kScaleBlock = 256;  // scales that share a scale of their own
inline constexpr float kByteLevels = 127, kAffineSteps = 255;

// What the codes 0 to 15 stand for, ascending: quantiles of the standard normal distribution
// (functional.py, get_4bit_type).
inline constexpr std::array<float, 16> kNf4{
    -1.0f,
    -0.6961928009986877f,
    -0.5250730514526367f,
    -0.39491748809814453f,
    -0.28444138169288635f,
    -0.18477343022823334f,
    -0.09105003625154495f,
    0.0f,
    0.07958029955625534f,
    0.16093020141124725f,
    0.24611230194568634f,
    0.33791524171829224f,
    0.44070982933044434f,
    0.5626170039176941f,
    0.7229568362236023f,
    1.0f,
};

// Of n values in blocks of `block`.
struct PackedWeight {
  // NF4: uint8 [ceil(n / 2)], two to a byte, the first in its high half. Symmetric: int8 [n].
  // Affine: uint8 [n].
  ConstTensorView codes;
  ConstTensorView scales;  // fp32 [ceil(n / block)], or uint8: codes of kSignedMap (NF4)
  // Of scales in 8 bits, fp32: [ceil(scales / kScaleBlock)], and [1], added to all. Else none.
  ConstTensorView scale_scales = {}, offset = {};
  ConstTensorView zeros = {};  // affine: the code that stands for 0, uint8 [ceil(n / block)]
  std::int64_t block = kPackedBlock;  // of NF4 kPackedBlock

  bool of_bytes() const { return codes.dtype == DType::int8 || zeros; }
};

struct PackedKernels {
  // In fp32, rounded once to `to`'s dtype. NF4: to[i] = level(code i) · scale; a scale in 8 bits is
  // value(code) · scale_scale + offset, each rounded. Symmetric: code · scale · (1 / 127), each
  // rounded. Affine: (code − zero) · scale.
  void (*dequantize)(const PackedWeight& weight, TensorView to);
};

// Packing is done on the host, when weights are read: the same bytes on every device.
//
// codes: ceil(n / 2), the low half of an odd last one that of 0; scales: ceil(n / kPackedBlock).
void pack_nf4(std::span<const float> values, std::span<std::uint8_t> codes,
              std::span<float> scales);
// The mean, then the codes of what is left. The mean is summed in fp64, in order: PyTorch's order
// depends on the processor, and may differ in the last bit.
void pack_scales(std::span<const float> scales, std::span<std::uint8_t> codes,
                 std::span<float> scale_scales, float& offset);
// Of rows of `row` values; codes: of n values n. A row of zeros has a scale of 0. Half-way values
// go to the even code.
void pack_int8(std::span<const float> values, std::int64_t row, std::span<std::int8_t> codes,
               std::span<float> scales);
// Of blocks of `block` values, the last one of what is left. A block of zeros has a scale of 0.
void pack_affine(std::span<const float> values, std::int64_t block, std::span<std::uint8_t> codes,
                 std::span<float> scales, std::span<std::uint8_t> zeros);

}  // namespace plimsoll::kernels
