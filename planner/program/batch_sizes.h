// The sizes of a program for a class of batches, and of ranks that share parameters: expressions
// (sym_int.h), recorded while the program was written for one of them.
#pragma once

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "models/batch.h"
#include "models/step_program.h"
#include "planner/program/equal_sizes.h"
#include "planner/program/symbolic_bytes.h"

namespace plimsoll::planner {

struct SymNode {
  std::uint32_t a = 0, b = 0;  // nodes before this one, 0: `value`; or where terms begin and end
  std::int64_t value = 0;  // a plain number; which variable; which call
  SymOp op = SymOp::constant;
  bool operator==(const SymNode&) const = default;
};
struct SymCall {
  SymFunction function = nullptr;
  std::array<std::uint32_t, 4> arguments{};
  bool operator==(const SymCall&) const = default;
};
// Of a sum: a node, so many times. `times` 0 ends the sum.
struct SymTerm {
  std::uint32_t node = 0;
  std::int32_t times = 0;
};
struct SymGuard {
  bool equal = false;  // else: less
  bool holds = false;
  std::uint32_t a = 0, b = 0;  // as SymNode's
  std::int64_t value = 0;
  bool operator==(const SymGuard&) const = default;
};

// What a batch is to the writers, beside the length of its sequences, of which a class has one;
// and how many ranks a parameter is split over. real_tokens: those that are no padding.
enum class StepVariable : std::uint8_t {
  micro_batch,
  tokens,
  real_tokens,
  samples,
  grad_accum,
  shards,
};
inline constexpr std::size_t kStepVariables = 6;
using StepValues = std::array<std::int64_t, kStepVariables>;
StepValues values_of(const models::Batch& batch, std::int64_t shards);
// As a variable where somebody records the sizes of this batch; of so many ranks.
SymInt value_of(const models::Batch& batch, StepVariable which);
SymInt value_of_shards(std::int64_t shards);

class BatchSizes {
 public:
  // Puts the sizes of a batch, and of so many ranks that share parameters, into the program. False:
  // they are of another class, and nothing was put.
  bool write(const models::Batch& batch, models::StepProgram& program, std::int64_t shards = 1);
  // No size of the program is larger than that as it was written last.
  Bytes largest() const;
  // What has the same size in all batches of the class.
  const EqualSizes& equal() const { return equal_; }

 private:
  friend class SizeRecorder;
  struct Slot {
    std::uint32_t at = 0, node = 0;
  };
  bool evaluate(const StepValues& of);
  bool evaluate_highest(const SymNode& node, std::int64_t& out) const;

  std::int64_t length_ = 0;
  std::vector<SymNode> nodes_;
  std::vector<SymCall> calls_;
  std::vector<SymTerm> terms_;
  std::vector<SymGuard> guards_;
  std::vector<std::int64_t> values_;
  std::vector<Slot> tensors_, scratch_, times_, counts_;  // those that vary
  Bytes largest_fixed_;  // of the others
  EqualSizes equal_;
};

// Places in a list by the hash of what stands there. Cleared in no time, so that one serves many.
class HashedPlaces {
 public:
  void clear() { ++round_, count_ = 0; }
  // Where `is(place)`; else `next`, which is noted.
  template <class Is, class HashOf>
  std::uint32_t find(std::size_t hash, std::uint32_t next, Is&& is, HashOf&& hash_of) {
    std::size_t at = hash & (slots_.size() - 1);
    for (; slots_[at].round == round_; at = (at + 1) & (slots_.size() - 1))
      if (is(slots_[at].place)) return slots_[at].place;
    slots_[at] = {round_, next};
    if (2 * ++count_ > slots_.size()) grow(hash_of);
    return next;
  }

 private:
  struct Slot {
    std::uint32_t round = 0, place = 0;  // of another round: free
  };
  template <class HashOf>
  void grow(HashOf&& hash_of) {
    const std::vector<Slot> old(std::move(slots_));
    slots_.assign(2 * old.size(), {});
    for (const Slot& slot : old) {
      if (slot.round != round_) continue;
      std::size_t at = hash_of(slot.place) & (slots_.size() - 1);
      while (slots_[at].round == round_) at = (at + 1) & (slots_.size() - 1);
      slots_[at] = slot;
    }
  }
  std::vector<Slot> slots_ = std::vector<Slot>(1024);
  std::size_t count_ = 0;
  std::uint32_t round_ = 1;
};

}  // namespace plimsoll::planner
