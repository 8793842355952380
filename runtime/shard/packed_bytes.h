// A packed weight's bytes in its unit's flat part (models/decisions/packed_weights.h).
#pragma once

#include <span>
#include <vector>

#include "kernels/packed_weights.h"
#include "models/storages.h"

namespace plimsoll::runtime::shard {

// Where in its bytes what belongs to a weight begins, behind its codes.
struct PackedPlaces {
  const models::PackedStorage* storage = nullptr;
  std::int64_t values = 0, block = 0;  // values of a block
  std::int64_t scales = 0, scale_scales = 0, offset = 0, zeros = 0, bytes = 0;
};
// Of a matrix as it is stored.
PackedPlaces packed_places(const models::PackedStorage& storage, const kernels::Extents& shape);

// Of the weight's own bytes, wherever they are.
kernels::PackedWeight packed_view(const std::byte* bytes, const PackedPlaces& places);
// The bytes of as many values as the places have, as they would be in `dtype`.
std::vector<std::byte> packed_bytes(std::span<const float> values, DType dtype,
                                    const PackedPlaces& places);
// The bytes of a weight that was packed elsewhere. Error{internal}: of another size.
std::vector<std::byte> packed_bytes(const kernels::PackedWeight& weight,
                                    const PackedPlaces& places);
// The values again, as a GEMM in `dtype` reads them.
std::vector<float> unpacked(std::span<const std::byte> bytes, DType dtype,
                            const PackedPlaces& places);

// Sums of squares: of what unpacked values differ from the ones that a GEMM in `dtype` would have
// read, and of these.
struct PackingLoss {
  double lost = 0, all = 0;
};
PackingLoss packing_loss(std::span<const float> values, DType dtype, const PackedPlaces& places);

}  // namespace plimsoll::runtime::shard
