// Which lifetimes begin, or end, with which step of a timeline.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace plimsoll::planner {

// Lifetimes by the step of their birth, or of their death, or by their tensor: one row after
// another.
class LifetimeRows {
 public:
  LifetimeRows(std::size_t steps, std::size_t lifetimes) : begin_(steps + 1) {
    all_.reserve(lifetimes);
  }

  void expect(std::int64_t step) { ++begin_[static_cast<std::size_t>(step) + 1]; }
  void all_expected() {
    for (std::size_t s = 1; s < begin_.size(); ++s) begin_[s] += begin_[s - 1];
    all_.resize(begin_.back());
    next_ = begin_;
  }
  void add(std::int64_t step, std::size_t lifetime) {
    all_[next_[static_cast<std::size_t>(step)]++] = static_cast<std::int32_t>(lifetime);
  }
  std::span<const std::int32_t> at(std::size_t step) const {
    return {all_.data() + begin_[step], begin_[step + 1] - begin_[step]};
  }

 private:
  std::vector<std::size_t> begin_, next_;
  std::vector<std::int32_t> all_;
};

}  // namespace plimsoll::planner
