// A function with everything that follows from it, derived when it is first asked for and kept.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "models/base/error.h"
#include "planner/stacks/pytorch/tape/lowering.h"

namespace plimsoll::planner::tape {

// What those who write a rule's ops have room for; a rule that needs more is an internal error.
inline constexpr std::size_t kMostKept = 24, kMostSlots = 64;

class Rule {
 public:
  explicit Rule(Function function);
  ~Rule();
  Rule(const Rule&) = delete;
  Rule& operator=(const Rule&) = delete;

  const Function& function() const { return function_; }
  const std::vector<ValueId>& kept() const { return kept_; }
  std::size_t parameter_at(ValueId value) const;  // among the parameters
  const Lowered& forward(bool saves, bool stops) const;
  const Lowered& backward(const Surroundings& surroundings) const;

 private:
  using Known = std::atomic<const Lowered*>;
  template <class Make>
  const Lowered& known(Known& at, Make&& make) const;
  Function function_;
  std::vector<ValueId> kept_;
  mutable std::array<Known, 4> forward_{};
  mutable std::array<Known, 64> backward_{};
};

// Two bits for the dtypes that activations have.
constexpr std::size_t dtype_bits(DType dtype) {
  return dtype == DType::fp32 ? 0 : dtype == DType::bf16 ? 1 : dtype == DType::fp16 ? 2 : 3;
}

// Rules by a small number; made by whoever asks first.
template <std::size_t Count>
class Rules {
 public:
  template <class Make>
  const Rule& find(std::size_t key, Make&& make) {
    check(key < Count, ErrorKind::internal, "a rule's number");
    std::atomic<const Rule*>& at = all_[key];
    if (const Rule* rule = at.load(std::memory_order_acquire)) return *rule;
    auto made = std::make_unique<Rule>(make());
    const Rule* none = nullptr;
    if (at.compare_exchange_strong(none, made.get(), std::memory_order_acq_rel))
      return *made.release();
    return *none;
  }
  ~Rules() {
    for (auto& rule : all_) delete rule.load();
  }

 private:
  std::array<std::atomic<const Rule*>, Count> all_{};
};

// By any number, for each place that asks; found again without a lock.
template <class Make>
const Rule& known_rule(std::uint64_t key, Make&& make) {
  thread_local std::unordered_map<std::uint64_t, const Rule*> seen;
  const Rule*& here = seen[key];
  if (here != nullptr) return *here;
  static std::mutex mutex;
  static std::unordered_map<std::uint64_t, std::unique_ptr<const Rule>> all;
  const std::lock_guard lock(mutex);
  auto& rule = all[key];
  if (rule == nullptr) rule = std::make_unique<const Rule>(make());
  return *(here = rule.get());
}

}  // namespace plimsoll::planner::tape
