#include "runtime/shard/packed_bytes.h"

#include <algorithm>
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
  return ceil_divide(places.values, places.block);
}
std::int64_t scale_blocks_of(const PackedPlaces& places) {
  return ceil_divide(blocks_of(places), kernels::kScaleBlock);
}
std::int64_t code_bytes(const PackedPlaces& places) {
  return ceil_divide(checked_multiply(places.values, places.storage->bits), std::int64_t{8});
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

PackedPlaces packed_places(const models::PackedStorage& storage, const kernels::Extents& shape) {
  PackedPlaces places{.storage = &storage,
                      .values = shape.elements(),
                      .block = storage.block_of(shape[shape.rank - 1])};
  const auto place = [&](std::int64_t bytes) {
    const std::int64_t at = places.bytes;
    places.bytes += aligned(bytes);
    return at;
  };
  const std::int64_t blocks = blocks_of(places);
  place(code_bytes(places));
  places.scales =
      place(checked_multiply(blocks, plimsoll::storage(Count(1), storage.scale).value()));
  if (storage.affine) places.zeros = place(blocks);
  if (!storage.doubly_quantized()) return places;
  places.scale_scales = place(checked_multiply(scale_blocks_of(places), std::int64_t{4}));
  places.offset = place(4);
  return places;
}

kernels::PackedWeight packed_view(const std::byte* bytes, const PackedPlaces& places) {
  const models::PackedStorage& storage = *places.storage;
  const std::int64_t blocks = blocks_of(places);
  kernels::PackedWeight weight{
      .codes = {bytes,
                storage.bits == 8 && !storage.affine ? DType::int8 : DType::uint8,
                {code_bytes(places)}},
      .scales = {bytes + places.scales, storage.scale, {blocks}},
      .block = places.block};
  if (storage.affine) weight.zeros = {bytes + places.zeros, DType::uint8, {blocks}};
  if (!storage.doubly_quantized()) return weight;
  weight.scale_scales = {bytes + places.scale_scales, DType::fp32, {scale_blocks_of(places)}};
  weight.offset = {bytes + places.offset, DType::fp32, {1}};
  return weight;
}

namespace {

void pack_bytes(std::span<const float> values, const PackedPlaces& places,
                std::vector<std::byte>& to) {
  std::vector<float> scales(static_cast<std::size_t>(blocks_of(places)));
  if (places.storage->affine) {
    std::vector<std::uint8_t> codes(values.size()), zeros(scales.size());
    kernels::pack_affine(values, places.block, codes, scales, zeros);
    put(codes, 0, to);
    put(zeros, places.zeros, to);
  } else {
    std::vector<std::int8_t> codes(values.size());
    kernels::pack_int8(values, places.block, codes, scales);
    put(codes, 0, to);
  }
  put(scales, places.scales, to);
}

void pack_nf4(std::span<const float> values, const PackedPlaces& places,
              std::vector<std::byte>& to) {
  std::vector<std::uint8_t> codes(static_cast<std::size_t>(code_bytes(places)));
  std::vector<float> scales(static_cast<std::size_t>(blocks_of(places)));
  kernels::pack_nf4(values, codes, scales);
  put(codes, 0, to);
  if (!places.storage->doubly_quantized()) return put(scales, places.scales, to);
  std::vector<std::uint8_t> scale_codes(scales.size());
  std::vector<float> scale_scales(static_cast<std::size_t>(scale_blocks_of(places))), offset(1);
  kernels::pack_scales(scales, scale_codes, scale_scales, offset.front());
  put(scale_codes, places.scales, to);
  put(scale_scales, places.scale_scales, to);
  put(offset, places.offset, to);
}

}  // namespace

std::vector<std::byte> packed_bytes(std::span<const float> values, DType dtype,
                                    const PackedPlaces& places) {
  check(static_cast<std::int64_t>(values.size()) == places.values, ErrorKind::internal,
        "a weight is packed whole");
  std::vector<std::byte> bytes(static_cast<std::size_t>(places.bytes));
  const auto pack = places.storage->bits == 8 ? pack_bytes : pack_nf4;
  pack(rounded(values, dtype), places, bytes);
  return bytes;
}

std::vector<std::byte> packed_bytes(const kernels::PackedWeight& weight,
                                    const PackedPlaces& places) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(places.bytes));
  const kernels::PackedWeight here = packed_view(bytes.data(), places);
  const auto copy = [&](const ConstTensorView& from, const ConstTensorView& to) {
    check(from.dtype == to.dtype && from.elements() == to.elements(), ErrorKind::internal,
          "a weight that is packed in another way");
    if (!to) return;
    const auto* first = static_cast<const std::byte*>(from.data);
    std::copy_n(first, storage(Count(from.elements()), from.dtype).value(),
                bytes.begin() + (static_cast<const std::byte*>(to.data) - bytes.data()));
  };
  copy(weight.codes, here.codes);
  copy(weight.scales, here.scales);
  copy(weight.scale_scales, here.scale_scales);
  copy(weight.offset, here.offset);
  copy(weight.zeros, here.zeros);
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

PackingLoss packing_loss(std::span<const float> values, DType dtype, const PackedPlaces& places) {
  const std::vector<float> plain = rounded(values, dtype);
  const std::vector<float> back = unpacked(packed_bytes(values, dtype, places), dtype, places);
  PackingLoss sums;
  for (std::size_t i = 0; i < plain.size(); ++i) {
    const double value = static_cast<double>(plain[i]), off = static_cast<double>(back[i]) - value;
    sums.lost += off * off;
    sums.all += value * value;
  }
  return sums;
}

}  // namespace plimsoll::runtime::shard
