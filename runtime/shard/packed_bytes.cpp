#include "runtime/shard/packed_bytes.h"

#include <cstring>

#include "models/decisions/sharding.h"
#include "runtime/shard/host_copy.h"

namespace plimsoll::runtime::shard {

using kernels::ConstTensorView;

namespace {

std::int64_t aligned(std::int64_t bytes) {
  const std::int64_t step = models::decisions::kFlatAlignment.value();
  return checked_multiply(ceil_divide(bytes, step), step);
}

std::int64_t blocks_of(const PackedPlaces& places) {
  return ceil_divide(places.values, kernels::kPackedBlock);
}
std::int64_t scale_blocks_of(const PackedPlaces& places) {
  return ceil_divide(blocks_of(places), kernels::kScaleBlock);
}

template <class T>
void put(const std::vector<T>& from, std::int64_t at, std::vector<std::byte>& to) {
  std::memcpy(to.data() + at, from.data(), from.size() * sizeof(T));
}

// As GEMMs would read them, had they not been packed.
std::vector<float> rounded(std::span<const float> values, DType dtype) {
  std::vector<float> out(values.begin(), values.end());
  std::vector<std::byte> narrow(static_cast<std::size_t>(
      storage(Count(static_cast<std::int64_t>(values.size())), dtype).value()));
  const kernels::TensorView view(narrow.data(), dtype, {static_cast<std::int64_t>(values.size())});
  write_values(host_device(), out, view);
  read_values(host_device(), view, out);
  return out;
}

}  // namespace

PackedPlaces packed_places(const models::PackedStorage& storage, std::int64_t values) {
  PackedPlaces places{.values = values, .doubly_quantized = storage.doubly_quantized()};
  const std::int64_t scale = places.doubly_quantized ? 1 : 4;
  places.scales = aligned(ceil_divide(values, std::int64_t{2}));
  places.bytes = places.scales + aligned(checked_multiply(blocks_of(places), scale));
  if (!places.doubly_quantized) return places;
  places.scale_scales = places.bytes;
  places.offset =
      places.scale_scales + aligned(checked_multiply(scale_blocks_of(places), std::int64_t{4}));
  places.bytes = places.offset + aligned(4);
  return places;
}

kernels::PackedWeight packed_view(const std::byte* bytes, const PackedPlaces& places) {
  kernels::PackedWeight weight;
  weight.codes = {bytes, DType::uint8, {ceil_divide(places.values, std::int64_t{2})}};
  weight.scales = {bytes + places.scales,
                   places.doubly_quantized ? DType::uint8 : DType::fp32,
                   {blocks_of(places)}};
  if (!places.doubly_quantized) return weight;
  weight.scale_scales = {bytes + places.scale_scales, DType::fp32, {scale_blocks_of(places)}};
  weight.offset = {bytes + places.offset, DType::fp32, {1}};
  return weight;
}

std::vector<std::byte> packed_bytes(std::span<const float> values, DType dtype,
                                    const PackedPlaces& places) {
  check(static_cast<std::int64_t>(values.size()) == places.values, ErrorKind::internal,
        "a weight is packed whole");
  std::vector<std::uint8_t> codes((values.size() + 1) / 2);
  std::vector<float> scales(static_cast<std::size_t>(blocks_of(places)));
  kernels::pack_nf4(rounded(values, dtype), codes, scales);
  std::vector<std::byte> bytes(static_cast<std::size_t>(places.bytes));
  put(codes, 0, bytes);
  if (!places.doubly_quantized) {
    put(scales, places.scales, bytes);
    return bytes;
  }
  std::vector<std::uint8_t> scale_codes(scales.size());
  std::vector<float> scale_scales(static_cast<std::size_t>(scale_blocks_of(places))), offset(1);
  kernels::pack_scales(scales, scale_codes, scale_scales, offset.front());
  put(scale_codes, places.scales, bytes);
  put(scale_scales, places.scale_scales, bytes);
  put(offset, places.offset, bytes);
  return bytes;
}

std::vector<float> unpacked(std::span<const std::byte> bytes, DType dtype,
                            const PackedPlaces& places) {
  check(static_cast<std::int64_t>(bytes.size()) == places.bytes, ErrorKind::internal,
        "a weight is unpacked whole");
  std::vector<std::byte> whole(
      static_cast<std::size_t>(storage(Count(places.values), dtype).value()));
  const kernels::TensorView view(whole.data(), dtype, {places.values});
  kernels::host_kernels().dequantize(packed_view(bytes.data(), places), view);
  std::vector<float> values(static_cast<std::size_t>(places.values));
  read_values(host_device(), view, values);
  return values;
}

}  // namespace plimsoll::runtime::shard
