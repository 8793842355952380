// What an optimizer keeps of a parameter, and makes for a moment in its turn: in extents of it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "models/base/dtype.h"

namespace plimsoll::models {

// What lives between steps, beside masters. Called as torch.optim calls them; names are of tensors.
enum class OptimizerState : std::uint8_t {
  exp_avg,
  exp_avg_sq,
  momentum_buffer,
  exp_avg_sq_row,
  exp_avg_sq_col,
  projector,
  z,
  square_avg,
  sum,
  vmean,
  scaled_grad,
  kahan_comp,
  eps_sq,
  mean_square,
  grok_ema,
  projector_scales,
  projector_zeros,
  past_ortho_vector,
};
inline constexpr std::array<const char*, 18> kOptimizerStates{"exp_avg",
                                                              "exp_avg_sq",
                                                              "momentum_buffer",
                                                              "exp_avg_sq_row",
                                                              "exp_avg_sq_col",
                                                              "projector",
                                                              "z",
                                                              "square_avg",
                                                              "sum",
                                                              "vmean",
                                                              "scaled_grad",
                                                              "kahan_comp",
                                                              "eps_sq",
                                                              "mean_square",
                                                              "grok_ema",
                                                              "projector_scales",
                                                              "projector_zeros",
                                                              "past_ortho_vector"};
constexpr const char* name_of(OptimizerState state) {
  return kOptimizerStates[static_cast<std::size_t>(state)];
}

// How many values of a parameter [..., m, n]: one for each element, each row, each column; m by m
// where m is the less of both. Of a vector, which has no rows and columns: nothing but `elements`.
// `lesser`: m, `greater`: n. Projected to rank r: r by n, r by m, r by r; `projector_groups`: of
// kProjectorGroup values of r by m. Blocks: of states in such. One: for all of it.
inline constexpr std::int64_t kProjectorGroup = 256;  // Q-GaLore's --proj_group_size
enum class Extent : std::uint8_t {
  elements,
  rows,
  columns,
  square,
  lesser,
  low_rank,
  projector,
  projector_groups,
  rank_square,
  blocks,
  one,
  greater
};
// Which parameters: not all are matrices (or stacks of them), in fp32, or projected (`whole`), have
// states in blocks, or a last axis of whole blocks.
enum class Of : std::uint8_t {
  all,
  matrices,
  vectors,
  in_16_bits,
  in_fp32,
  projected,
  projected_in_16_bits,
  projected_in_fp32,
  whole,
  in_blocks,
  in_rows_of_blocks
};

struct StateTensor {
  OptimizerState name;
  std::int64_t times = 1;
  Extent extent = Extent::elements;
  Of of = Of::all;
  bool plain = false;  // in the parameter's dtype, whatever the others are in
  std::optional<DType> dtype = {};  // in this one, all the same
};

// States in 8 bits, or 4: one scale in fp32 for each block. In `state_dtype` where the parameter
// has less elements than `least`, where it is an embedding's, unless `embeddings` are in blocks
// too, and where the last block would be a begun one, if only `whole` ones are made.
struct BlockStates {
  std::int64_t block = 0;  // 0: not in blocks
  std::int64_t least = 0;
  std::int64_t tables = 0;  // bytes of what the 8 bits mean, of all parameters together
  bool embeddings = false;
  DType codes = DType::uint8;
  bool whole = false;
  std::int64_t table_of_each = 0;  // bytes of what the bits mean, of each state
  std::int64_t block_before = 0;  // bitsandbytes' before 0.44; 0: the same
};

// What a step that takes one parameter after another allocates, in its order. A slot is a variable
// of Python's loop: what it names stays until it names another, in the next parameter's turn too.
struct Moment {
  // pass_on: to `slot`, from `from`. give: as much of what there was before the step goes. keep:
  // stays beside the slots. sum_rows: PyTorch's kernel sums a matrix's rows, each of a stack.
  enum class Does : std::uint8_t { make, let_go, pass_on, give, keep, sum_rows };
  Does does = Does::make;
  std::uint8_t slot = 0, from = 0;
  std::optional<DType> dtype = {};  // none: the parameter's
  Extent extent = Extent::elements;
  Of of = Of::all;
};
inline constexpr std::size_t kMomentSlots = 10;

}  // namespace plimsoll::models
