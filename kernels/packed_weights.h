// Frozen weights in 4 bits: a code for each value, and for each block of values a scale, the
// largest of their magnitudes; doubly quantized, these scales less their mean are in 8 bits, in
// blocks of their own.
//
// Dettmers, Pagnoni, Holtzman, Zettlemoyer, "QLoRA: Efficient Finetuning of Quantized LLMs", arXiv
// 2305.14314. Bytes and scales are those of bitsandbytes 0.50.2's portable backend (functional.py,
// quantize_4bit; backends/default/ops.py). Its CUDA kernels multiply by the inverse of the scale in
// a last block that is not full too, and its compiled CPU library looks codes of 8 bits up in a
// table of cells.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "kernels/tensor_view.h"

namespace plimsoll::kernels {

inline constexpr std::int64_t kPackedBlock = 64;  // values that share a scale
inline constexpr std::int64_t kScaleBlock = 256;  // scales that share a scale of their own

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

// Of n values. Two to a byte, the first in its high half.
struct PackedWeight {
  ConstTensorView codes;  // uint8 [ceil(n / 2)]
  ConstTensorView scales;  // fp32 [ceil(n / kPackedBlock)], or uint8: codes of kSignedMap
  // Of scales in 8 bits, fp32: [ceil(scales / kScaleBlock)], and [1], added to all. Else none.
  ConstTensorView scale_scales, offset;
};

struct PackedKernels {
  // to[i] = level(code i) · scale, in fp32, rounded once to `to`'s dtype; a scale in 8 bits is
  // value(code) · scale_scale + offset, each rounded.
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

}  // namespace plimsoll::kernels
