// What an optimizer keeps of a parameter between steps, as rows of models/optimizers.h say.
#pragma once

#include <array>
#include <cstddef>

#include "models/base/dtype.h"
#include "models/optimizers.h"

namespace plimsoll::models {

// What a rank steps of a parameter [..., m, n].
struct SteppedTensor {
  std::int64_t elements = 0;
  DType dtype = DType::fp32;
  std::int64_t rows = 0, columns = 0;  // m, n; 0: a vector
  bool embedding = false;  // of an nn.Embedding
  bool hidden = true;  // neither an embedding nor the head
  std::int64_t rank = 0;  // to which it is projected; 0: it is not
  std::int64_t block = 0;  // of its states, while it is stepped; 0: they are not in blocks
  bool is_matrix() const { return columns > 0; }
};

// The row that steps it: another than the optimizer's own where that takes matrices of layers only.
const OptimizerRule& rule_for(Optimizer kind, const SteppedTensor& tensor);

// Elements of that extent; 0: the tensor is none of those.
Count count_of(Extent extent, Of of, const SteppedTensor& tensor);

// To which it is projected: 0, or the optimizer's rank, at most the matrix's own.
std::int64_t rank_of(const Strategy& strategy, const SteppedTensor& tensor);

// Whether its optimizer has no step but in the backward.
bool steps_behind(const Strategy& strategy);

// Whether its states are in blocks of 8 bits.
bool in_blocks(const BlockStates& blocks, const SteppedTensor& tensor);

// `Size`: Bytes, or what a planner computes in their place.
template <class Size>
struct KeptStateOf {
  const char* name = nullptr;
  Size bytes{};
  bool managed = false;  // in managed memory, beside the allocator
  // Bytes of each element, where nothing else of the tensor decides; 0: something does.
  std::int64_t bytes_each = 0;
};

// In the order in which they are made.
template <class Size>
class KeptStatesOf {
 public:
  using State = KeptStateOf<Size>;
  void add(const State& state) { all_[count_++] = state; }
  // To the one of that name and place.
  void merge(const State& state) {
    for (State& same : *this)
      if (same.name == state.name && same.managed == state.managed)
        return (void)(same.bytes += state.bytes);
    add(state);
  }
  const State* begin() const { return all_.data(); }
  const State* end() const { return all_.data() + count_; }
  State* begin() { return all_.data(); }
  State* end() { return all_.data() + count_; }

 private:
  std::array<State, 9> all_{};
  std::size_t count_ = 0;
};
using KeptState = KeptStateOf<Bytes>;
using KeptStates = KeptStatesOf<Bytes>;

// Values that share a scale, of the optimizer's states in 8 bits.
std::int64_t block_of(const BlockStates& blocks, const Strategy& strategy);

// Under stack pytorch; counters of fused steps are not among them.
KeptStates kept_states(const Strategy& strategy, const SteppedTensor& tensor);

}  // namespace plimsoll::models
