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

namespace host {

void expect_packed(const PackedWeight& w, const TensorView& to, const char* op) {
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

void dequantize(const PackedWeight& w, TensorView to) {
  expect_packed(w, to, "dequantize");
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
