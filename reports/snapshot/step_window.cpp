#include "reports/snapshot/step_window.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <unordered_map>

namespace plimsoll::reports {

namespace {
constexpr std::size_t kMostAnchors = 12;  // sizes that are tried as marks of a step
constexpr std::size_t kMostInStep = 16;  // and how often a mark may occur in one
constexpr std::size_t kMostTries = 8;  // steps that are looked at for each mark, the last first
// A step like the plan's has at least so much of what the plan allocates.
constexpr double kLeastLikeness = 0.5;
// Two steps have all that one has; what a plan does not name, scratch of single operators, is in
// every step. In the first step, and before it, all that stays is allocated too.
constexpr double kBesides = 0.1, kMostBesides = 0.4;
// A later step is taken where it is as good but for this.
constexpr double kAsGood = 0.03;

using Counts = std::unordered_map<std::int64_t, std::int64_t>;

class StepSearch {
 public:
  StepSearch(const AllocationHistory& history, std::span<const std::int64_t> sizes)
      : history_(history) {
    for (const std::int64_t size : sizes) {
      ++planned_[size];
      planned_bytes_ += static_cast<double>(size);
    }
    for (std::size_t i = 0; i < history.allocations.size(); ++i)
      if (history.allocations[i].born >= 0) {
        if (births_.empty()) first_birth_ = i;
        births_.push_back(history.allocations[i].born);
        occurrences_[size_class(history.allocations[i].requested)].push_back(
            history.allocations[i].born);
      }
  }

  std::optional<StepWindow> run() {
    for (const std::int64_t mark : marks()) try_mark(mark);
    double best = kLeastLikeness;
    for (const Tried& one : tried_) best = std::max(best, one.likeness);
    const Tried* last = nullptr;
    for (const Tried& one : tried_)
      if (one.likeness >= best - kAsGood && (!last || one.window.end > last->window.end))
        last = &one;
    if (!last) return std::nullopt;
    // Of those that are about the same step the one with the least allocated at its ends: others
    // begin or end within it.
    const Tried* out = last;
    for (const Tried& one : tried_)
      if (one.likeness >= best - kAsGood && one.window.end > last->window.begin &&
          at_ends(one.window) < at_ends(out->window))
        out = &one;
    return out->window;
  }

 private:
  // How many steps the history seems to have: most bytes of the plan occur as often.
  std::int64_t steps() const {
    std::map<std::int64_t, double> votes;
    for (const auto& [size, count] : planned_)
      if (const std::int64_t seen = occurrences(size); seen % count == 0)
        votes[seen / count] += static_cast<double>(size * count);
    votes.erase(0);
    const auto most =
        std::ranges::max_element(votes, {}, [](const auto& vote) { return vote.second; });
    return most == votes.end() ? 0 : most->first;
  }

  std::int64_t occurrences(std::int64_t size) const {
    const auto at = occurrences_.find(size);
    return at == occurrences_.end() ? 0 : static_cast<std::int64_t>(at->second.size());
  }

  // Sizes that occur in each step as often as in the plan's, then others; of those the seldom ones,
  // and the largest first.
  std::vector<std::int64_t> marks() const {
    const std::int64_t steps_in_all = steps();
    std::vector<std::int64_t> out;
    for (const auto& [size, count] : planned_)
      if (count <= static_cast<std::int64_t>(kMostInStep) && occurrences(size) > 0)
        out.push_back(size);
    std::ranges::sort(out, {}, [&](std::int64_t size) {
      const std::int64_t count = planned_.at(size);
      return std::tuple(occurrences(size) != count * steps_in_all, count, -size);
    });
    // One that occurs elsewhere too would cut steps at wrong places.
    const auto others = std::ranges::find_if(out, [&](std::int64_t size) {
      return occurrences(size) != planned_.at(size) * steps_in_all;
    });
    if (others != out.begin()) out.erase(others, out.end());
    if (out.size() > kMostAnchors) out.resize(kMostAnchors);
    return out;
  }

  void try_mark(std::int64_t mark) {
    const std::vector<std::int64_t>& at = occurrences_.at(mark);
    const auto each = static_cast<std::size_t>(planned_.at(mark));
    for (std::size_t shift = 0; shift < each && shift + each <= at.size(); ++shift) {
      const std::size_t steps = (at.size() - shift) / each;
      for (std::size_t k = 0; k < std::min(steps, kMostTries); ++k) {
        const std::size_t last = at.size() - shift - k * each;  // one past
        const std::size_t first = last - each;
        try_window({valley(first == 0 ? -1 : at[first - 1], at[first]),
                    valley(at[last - 1], last == at.size() ? end() : at[last])});
      }
    }
  }

  std::int64_t end() const { return static_cast<std::int64_t>(history_.allocated.size()); }
  Bytes allocated(std::int64_t event) const {
    return event < 0 ? history_.allocated_before
                     : history_.allocated[static_cast<std::size_t>(event)];
  }

  Bytes at_ends(const StepWindow& window) const {
    return allocated(window.begin) + allocated(window.end);
  }

  // The event in [from, to) after which the least is allocated: the last of several. Between two
  // steps only what stays is allocated.
  std::int64_t valley(std::int64_t from, std::int64_t to) const {
    std::int64_t lowest = from;
    for (std::int64_t i = from; i < to; ++i)
      if (allocated(i) <= allocated(lowest)) lowest = i;
    return lowest;
  }

  // How much of the plan's bytes the window has, less a little of what it has beside them.
  double likeness(const StepWindow& window) const {
    const auto from = std::ranges::upper_bound(births_, window.begin) - births_.begin();
    const auto to = std::ranges::upper_bound(births_, window.end) - births_.begin();
    Counts left = planned_;
    double score = 0, besides = 0;
    for (auto i = from; i < to; ++i) {
      const std::int64_t size =
          size_class(history_.allocations[first_birth_ + static_cast<std::size_t>(i)].requested);
      const auto at = left.find(size);
      const bool is_planned = at != left.end() && at->second > 0;
      if (is_planned) --at->second;
      (is_planned ? score : besides) += static_cast<double>(size);
    }
    return score / planned_bytes_ - std::min(kMostBesides, kBesides * besides / planned_bytes_);
  }

  void try_window(const StepWindow& window) { tried_.push_back({window, likeness(window)}); }

  const AllocationHistory& history_;
  Counts planned_;
  double planned_bytes_ = 0;
  std::size_t first_birth_ = 0;
  std::vector<std::int64_t> births_;  // events
  std::unordered_map<std::int64_t, std::vector<std::int64_t>> occurrences_;
  struct Tried {
    StepWindow window;
    double likeness;
  };
  std::vector<Tried> tried_;
};
}  // namespace

std::int64_t size_class(Bytes bytes) {
  return std::max<std::int64_t>(512, round_up(bytes, 512).value());
}

std::optional<StepWindow> step_window(const AllocationHistory& history,
                                      std::span<const std::int64_t> sizes) {
  if (sizes.empty()) return std::nullopt;
  return StepSearch(history, sizes).run();
}

}  // namespace plimsoll::reports
