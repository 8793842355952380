// What is recomputed, as options and documents write it.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "models/block.h"
#include "models/run_spec.h"

namespace plimsoll::models {

// "none", "full", "every:4", "block:12", "nth:2", "recursive:4", "ops:attention+o_proj",
// "ops:torchtitan".
std::string text_of(const Recompute& recompute);
// Nothing: not of that form. K of every:K, N of block:N and nth:N and C of recursive:C are from 1
// to 999999; "uniform:4" is "every:4", "core_attn" "selective": Megatron's names.
std::optional<Recompute> recompute_from(std::string_view text);
inline constexpr const char* kRecomputeForms =
    "none, selective, full, sqrt, every:K, block:N, nth:N, recursive:C or ops:NAME+NAME";

bool keeps_torchtitan_ops(const Recompute& recompute);
// Whether a checkpoint by operator (ops) keeps what the node makes. `number`: of a linear, how many
// come before it in the block. torchtitan's policy (activation_checkpoint.py, _custom_policy): what
// attention makes, and every second GEMM, the first one first.
bool keeps(const Recompute& recompute, const Node& node, int number);
// The names that it accepts for a block: attention, and its linears' last parts.
std::vector<std::string> keepable(const Block& block);
// Error{bad_input}: checkpoints around more of the first layers than the model has, or around none.
void check_layers(const Recompute& recompute, std::int64_t layers);
// Error{bad_input}: a name that fits no node of any block.
void check_kept(const Recompute& recompute,
                const std::vector<std::shared_ptr<const Block>>& blocks);

}  // namespace plimsoll::models
