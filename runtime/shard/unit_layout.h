// The flat layout of a unit of parameters, as models/decisions/sharding.h decides it.
#pragma once

#include <array>
#include <span>
#include <string>
#include <vector>

#include "kernels/tensor_view.h"
#include "models/decisions/low_rank.h"
#include "models/decisions/optimizer_states.h"
#include "runtime/shard/packed_bytes.h"

namespace plimsoll::runtime::shard {

using kernels::Extents;

struct UnitParameter {
  std::string name;
  Extents shape;
  bool trained = true;
  bool adapter = false;
  const models::PackedStorage* packed = nullptr;  // a frozen one's
  std::int64_t low_rank = 0;  // a trained matrix's, if it is stepped in a subspace (low_rank.h)
};

// Packed: bytes, as elements of uint8.
enum class Part : std::uint8_t { frozen, packed, trained, adapters };
inline constexpr std::size_t kParts = 4;
inline constexpr std::array<Part, kParts> kAllParts{Part::frozen, Part::packed, Part::trained,
                                                    Part::adapters};
inline constexpr std::array<Part, 2> kTrainedParts{Part::trained, Part::adapters};

struct FlatPart {
  models::decisions::TrainedDtypes dtypes;  // of the frozen part only `weight`
  models::decisions::StateStorage states;  // of each of the optimizer's; of the frozen part none
  std::int64_t length = 0;  // elements to the end of the last tensor's alignment; of no sharding
  std::int64_t whole = 0;  // padded
  std::int64_t piece = 0;  // whole / shards
  // Where matrices are projected, elements of each moment and of the bases; no sharding then.
  bool projects = false;
  std::int64_t moments = 0, bases = 0;
};

// Where a parameter's elements are in its part.
struct Place {
  Part part = Part::trained;
  std::int64_t first = 0;
  Extents shape;
  std::int64_t count = 0;  // elements of its part that it takes
  PackedPlaces packed = {};
  models::decisions::LowRank low_rank = {};
  std::int64_t first_moment = 0, first_basis = 0;  // in those of its part, which projects
};
inline bool is_trained(Part part) {
  return part == Part::trained || part == Part::adapters;
}

// Elements first .. first + count of a range, which are from `offset` on in another.
struct Overlap {
  std::int64_t first = 0, count = 0, offset = 0;
};

struct UnitLayout {
  std::int64_t shards = 1;
  std::array<FlatPart, kParts> parts;
  std::vector<Place> places;  // of the parameters, in their order

  const FlatPart& part(Part p) const { return parts[static_cast<std::size_t>(p)]; }
  bool trains() const { return part(Part::trained).length > 0 || part(Part::adapters).length > 0; }
  // Trained elements without the padding: by how much the global index of the next unit's first
  // trained element is further on. The same under every sharding.
  std::int64_t trained_elements() const {
    return part(Part::trained).length + part(Part::adapters).length;
  }
  // Of parameter `index`, which elements are in shard `shard`'s piece (count 0: none), and from
  // which element of the piece on they are.
  Overlap in_piece(std::size_t index, std::int64_t shard) const;
};

UnitLayout layout_of(std::span<const UnitParameter> parameters,
                     const models::decisions::Regime& regime, models::Optimizer optimizer,
                     std::int64_t shards);

}  // namespace plimsoll::runtime::shard
