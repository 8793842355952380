#include "planner/program/batch_sizes.h"

#include <algorithm>
#include <utility>

namespace plimsoll::planner {

StepValues values_of(const models::Batch& batch, std::int64_t shards) {
  const std::int64_t tokens = batch.tokens();
  return {batch.micro_batch, tokens,           batch.real_tokens > 0 ? batch.real_tokens : tokens,
          batch.samples(),   batch.grad_accum, shards};
}

namespace {
// False: an overflow, which the writer will name.
bool compute(SymOp op, std::int64_t a, std::int64_t b, std::int64_t& out) {
  switch (op) {
    case SymOp::add:
      return !__builtin_add_overflow(a, b, &out);
    case SymOp::subtract:
      return !__builtin_sub_overflow(a, b, &out);
    case SymOp::multiply:
      return !__builtin_mul_overflow(a, b, &out);
    case SymOp::larger:
      out = std::max(a, b);
      return true;
    case SymOp::smaller:
      out = std::min(a, b);
      return true;
    case SymOp::round_up:
      return !__builtin_mul_overflow(ceil_divide(a, b), b, &out);
    case SymOp::divide:
    case SymOp::ceil_divide:
    case SymOp::remainder:
      if (b == 0) return false;
      out = op == SymOp::divide ? a / b : op == SymOp::remainder ? a % b : ceil_divide(a, b);
      return true;
    case SymOp::constant:
    case SymOp::variable:
    case SymOp::call:
    case SymOp::highest_sum:
      return true;
  }
  return false;
}
}  // namespace

bool BatchSizes::evaluate_highest(const SymNode& node, std::int64_t& out) const {
  std::int64_t most = 0, sum = 0;
  for (std::uint32_t i = node.a; i < node.b; ++i) {
    const SymTerm& term = terms_[i];
    if (term.times == 0) {
      most = std::max(most, std::exchange(sum, 0));
      continue;
    }
    std::int64_t product = 0;
    if (__builtin_mul_overflow(values_[term.node], std::int64_t{term.times}, &product) ||
        __builtin_add_overflow(sum, product, &sum))
      return false;
  }
  out = most;
  return true;
}

bool BatchSizes::evaluate(const StepValues& of) {
  values_.resize(nodes_.size());
  const auto value = [&](std::uint32_t node, std::int64_t plain) {
    return node == 0 ? plain : values_[node];
  };
  for (std::size_t i = 1; i < nodes_.size(); ++i) {
    const SymNode& node = nodes_[i];
    switch (node.op) {
      case SymOp::constant:
        values_[i] = node.value;
        break;
      case SymOp::variable:
        values_[i] = of[static_cast<std::size_t>(node.value)];
        break;
      case SymOp::call: {
        const SymCall& call = calls_[static_cast<std::size_t>(node.value)];
        const auto& x = call.arguments;
        values_[i] = call.function(values_[x[0]], values_[x[1]], values_[x[2]], values_[x[3]]);
        break;
      }
      case SymOp::highest_sum:
        if (!evaluate_highest(node, values_[i])) return false;
        break;
      default:
        if (!compute(node.op, value(node.a, node.value), value(node.b, node.value), values_[i]))
          return false;
    }
  }
  return std::ranges::all_of(guards_, [&](const SymGuard& g) {
    const std::int64_t a = value(g.a, g.value), b = value(g.b, g.value);
    return (g.equal ? a == b : a < b) == g.holds;
  });
}

Bytes BatchSizes::largest() const {
  return std::max(largest_fixed_,
                  values_.empty() ? Bytes(0) : Bytes(*std::ranges::max_element(values_)));
}

bool BatchSizes::write(const models::Batch& batch, models::StepProgram& program,
                       std::int64_t shards) {
  if (batch.seq_len != length_ || !evaluate(values_of(batch, shards))) return false;
  for (const Slot& slot : tensors_) program.tensors[slot.at].bytes = Bytes(values_[slot.node]);
  for (const Slot& slot : scratch_) program.ops[slot.at].scratch = Bytes(values_[slot.node]);
  for (const Slot& slot : times_) program.segments[slot.at].times = values_[slot.node];
  for (const Slot& slot : counts_) program.groups[slot.at].count = values_[slot.node];
  return true;
}

}  // namespace plimsoll::planner
