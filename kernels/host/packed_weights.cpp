#include "kernels/packed_weights.h"

#include <algorithm>
#include <vector>

#include "kernels/host/blocks.h"

namespace plimsoll::kernels {

namespace {

// Between a level and the next.
constexpr std::array<float, 15> kMiddles = [] {
  std::array<float, 15> middles{};
  for (std::size_t i = 0; i < 15; ++i) middles[i] = (kNf4[i] + kNf4[i + 1]) / 2;
  return middles;
}();

// The nearest level; of two that are equally near the lower one.
std::uint8_t nearest_level(float scaled) {
  std::size_t code = 0;
  for (std::size_t step = 8; step > 0; step /= 2)
    if (kMiddles[code + step - 1] < scaled) code += step;
  return static_cast<std::uint8_t>(code);
}

// Visits values of blocks of `block` with their scale: visit(index, value / scale). A last block
// that is not full is divided, and its scale is at least 1e-38; others are multiplied.
template <class Visit>
void in_scaled_blocks(std::span<const float> values, std::size_t block, std::span<float> scales,
                      Visit visit) {
  for (std::size_t first = 0, b = 0; first < values.size(); first += block, ++b) {
    const std::span<const float> some =
        values.subspan(first, std::min(block, values.size() - first));
    float most = 0;
    for (const float v : some) most = std::max(most, std::fabs(v));
    const bool full = some.size() == block;
    if (!full) most = std::max(most, 1e-38f);
    scales[b] = most;
    const float inverse = inverse_scale(most);
    for (std::size_t i = 0; i < some.size(); ++i)
      visit(first + i, full ? some[i] * inverse : some[i] / most);
  }
}

void expect_lengths(std::size_t values, std::size_t codes, std::size_t scales, std::size_t of_byte,
                    std::size_t block) {
  check(codes == (values + of_byte - 1) / of_byte && scales == (values + block - 1) / block,
        ErrorKind::internal, "codes and scales are those of the values");
}

}  // namespace

void pack_nf4(std::span<const float> values, std::span<std::uint8_t> codes,
              std::span<float> scales) {
  constexpr auto kBlock = static_cast<std::size_t>(kPackedBlock);
  expect_lengths(values.size(), codes.size(), scales.size(), 2, kBlock);
  if (values.size() % 2 != 0) codes.back() = nearest_level(0);
  in_scaled_blocks(values, kBlock, scales, [&](std::size_t i, float scaled) {
    const std::uint8_t code = nearest_level(scaled);
    std::uint8_t& byte = codes[i / 2];
    if (i % 2 == 0)
      byte = static_cast<std::uint8_t>(code << 4 | (i + 1 == values.size() ? byte & 0xf : 0));
    else
      byte = static_cast<std::uint8_t>(byte | code);
  });
}

void pack_scales(std::span<const float> scales, std::span<std::uint8_t> codes,
                 std::span<float> scale_scales, float& offset) {
  constexpr auto kBlock = static_cast<std::size_t>(kScaleBlock);
  expect_lengths(scales.size(), codes.size(), scale_scales.size(), 1, kBlock);
  double sum = 0;
  for (const float scale : scales) sum += static_cast<double>(scale);
  offset = scales.empty() ? 0 : static_cast<float>(sum) / static_cast<float>(scales.size());
  std::vector<float> rest(scales.begin(), scales.end());
  for (float& scale : rest) scale -= offset;
  in_scaled_blocks(rest, kBlock, scale_scales, [&](std::size_t i, float scaled) {
    codes[i] = nearest_code(kSignedMap.middle, scaled, 1);
  });
}

void pack_int8(std::span<const float> values, std::int64_t row, std::span<std::int8_t> codes,
               std::span<float> scales) {
  const auto block = static_cast<std::size_t>(row);
  expect_lengths(values.size(), codes.size(), scales.size(), 1, block);
  for (std::size_t first = 0, b = 0; first < values.size(); first += block, ++b) {
    float most = 0;
    for (std::size_t i = first; i < first + block; ++i) most = std::max(most, std::fabs(values[i]));
    scales[b] = most;
    // PyTorch's 127 / x is 1 / x times 127, each rounded (torch/_tensor.py, __rdiv__).
    const float inverse = 1 / most, steps = inverse * kByteLevels;
    for (std::size_t i = first; i < first + block; ++i)
      codes[i] =
          most == 0 ? std::int8_t{0} : static_cast<std::int8_t>(std::nearbyint(values[i] * steps));
  }
}

void pack_affine(std::span<const float> values, std::int64_t block_values,
                 std::span<std::uint8_t> codes, std::span<float> scales,
                 std::span<std::uint8_t> zeros) {
  const auto block = static_cast<std::size_t>(block_values);
  expect_lengths(values.size(), codes.size(), scales.size(), 1, block);
  expect_lengths(values.size(), codes.size(), zeros.size(), 1, block);
  const auto code = [](float value) {
    return static_cast<std::uint8_t>(std::clamp(value, 0.0f, kAffineSteps));
  };
  for (std::size_t first = 0, b = 0; first < values.size(); first += block, ++b) {
    const std::size_t end = std::min(first + block, values.size());
    float lowest = 0, highest = 0;
    for (std::size_t i = first; i < end; ++i) {
      lowest = std::min(lowest, values[i]);
      highest = std::max(highest, values[i]);
    }
    const float scale = (highest - lowest) / kAffineSteps;
    scales[b] = scale;
    zeros[b] = scale == 0 ? std::uint8_t{0} : code(std::nearbyint(-lowest / scale));
    for (std::size_t i = first; i < end; ++i)
      codes[i] = scale == 0
                     ? zeros[b]
                     : code(std::nearbyint(values[i] / scale) + static_cast<float>(zeros[b]));
  }
}

namespace host {

namespace {
void expect_bytes(const PackedWeight& w, const TensorView& to, const char* op) {
  const std::int64_t n = to.elements();
  expect(w.block > 0, op, "a block has values");
  const std::int64_t blocks = ceil_divide(n, w.block);
  expect(w.codes.elements() == n, op, "there is a byte of codes for each element");
  expect(w.scales.dtype == DType::fp32 && w.scales.elements() == blocks, op,
         "there is a scale in fp32 for each block");
  expect(!w.scale_scales && !w.offset, op, "scales in fp32 have none of their own");
  if (w.codes.dtype == DType::int8)
    return expect(!w.zeros, op, "signed codes have 0 in their middle");
  expect(w.codes.dtype == DType::uint8 && w.zeros.dtype == DType::uint8 &&
             w.zeros.elements() == blocks,
         op, "there is a zero for each block");
}
}  // namespace

void expect_packed(const PackedWeight& w, const TensorView& to, const char* op) {
  if (w.of_bytes()) return expect_bytes(w, to, op);
  const std::int64_t n = to.elements(), blocks = ceil_divide(n, kPackedBlock);
  expect(w.codes.dtype == DType::uint8 && w.codes.elements() == ceil_divide(n, 2), op,
         "there is half a byte of codes for each element");
  expect(w.scales.elements() == blocks, op, "there is a scale for each block of 64");
  const bool doubly = w.scales.dtype == DType::uint8;
  expect(doubly || w.scales.dtype == DType::fp32, op, "scales are in fp32 or 8 bits");
  expect(w.scale_scales.elements() == (doubly ? ceil_divide(blocks, kScaleBlock) : 0) &&
             w.offset.elements() == (doubly ? 1 : 0),
         op, "scales in 8 bits have scales and an offset, others have none");
}

namespace {

// value(index, block), in fp32.
template <class Value>
void dequantize_bytes(const PackedWeight& w, const TensorView& to, Value value) {
  in_blocks(to.elements(), [&](std::int64_t first, std::int64_t n) {
    float v[kBlock];
    for (std::int64_t i = 0; i < n; ++i) v[i] = value(first + i, (first + i) / w.block);
    write(v, first, n, to);
  });
}

void dequantize_int8(const PackedWeight& w, TensorView to) {
  const auto* codes = static_cast<const std::int8_t*>(w.codes.data);
  const float* scales = fp32_of(w.scales);
  dequantize_bytes(w, to, [&](std::int64_t i, std::int64_t block) {
    return static_cast<float>(codes[i]) * scales[block] * (1.0f / kByteLevels);
  });
}

void dequantize_affine(const PackedWeight& w, TensorView to) {
  const auto* codes = static_cast<const std::uint8_t*>(w.codes.data);
  const auto* zeros = static_cast<const std::uint8_t*>(w.zeros.data);
  const float* scales = fp32_of(w.scales);
  dequantize_bytes(w, to, [&](std::int64_t i, std::int64_t block) {
    return static_cast<float>(codes[i] - zeros[block]) * scales[block];
  });
}

void dequantize(const PackedWeight& w, TensorView to) {
  expect_packed(w, to, "dequantize");
  if (w.codes.dtype == DType::int8) return dequantize_int8(w, to);
  if (w.of_bytes()) return dequantize_affine(w, to);
  const auto* codes = static_cast<const std::uint8_t*>(w.codes.data);
  const bool doubly = w.scales.dtype == DType::uint8;
  const auto* coded = static_cast<const std::uint8_t*>(w.scales.data);
  const float* plain = doubly ? nullptr : fp32_of(w.scales);
  const float* scale_scales = doubly ? fp32_of(w.scale_scales) : nullptr;
  const float offset = doubly && to.elements() > 0 ? *fp32_of(w.offset) : 0;
  in_blocks(to.elements(), [&](std::int64_t first, std::int64_t n) {
    float v[kBlock];
    for (std::int64_t i = 0; i < n; ++i) {
      const std::int64_t at = first + i, block = at / kPackedBlock;
      const float scale =
          doubly ? kSignedMap.value[coded[block]] * scale_scales[block / kScaleBlock] + offset
                 : plain[block];
      const int code = at % 2 == 0 ? codes[at / 2] >> 4 : codes[at / 2] & 0xf;
      v[i] = kNf4[static_cast<std::size_t>(code)] * scale;
    }
    write(v, first, n, to);
  });
}

}  // namespace

void add_packed(KernelTable& table) {
  table.dequantize = dequantize;
}

}  // namespace host
}  // namespace plimsoll::kernels
