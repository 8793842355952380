#include "reports/snapshot/snapshot_comparison.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "models/base/error.h"
#include "reports/snapshot/life_join.h"
#include "reports/snapshot/step_window.h"
#include "reports/text.h"

namespace plimsoll::reports {

namespace {
using Phase = SnapshotStack::Phase;

// "layers.*.mlp" of "layers.12.mlp".
std::string without_numbers(std::string_view name) {
  std::string out;
  for (std::size_t i = 0; i < name.size(); ++i) {
    const bool digit = name[i] >= '0' && name[i] <= '9';
    const bool begins = i == 0 || name[i - 1] == '.';
    std::size_t end = i;
    while (end < name.size() && name[end] >= '0' && name[end] <= '9') ++end;
    if (digit && begins && (end == name.size() || name[end] == '.')) {
      out += '*';
      i = end - 1;
    } else {
      out += name[i];
    }
  }
  return out;
}

Phase phase_of(std::string_view name) {
  if (name.starts_with("forward")) return Phase::forward;
  if (name.starts_with("backward")) return Phase::backward;
  return name == "optimizer" ? Phase::optimizer : Phase::unknown;
}

// The lives of one side, and who found a partner.
struct Side {
  std::vector<Life> lives;  // of the step
  std::vector<std::size_t> of;  // index of the tensor or allocation
  std::map<std::int64_t, std::vector<std::size_t>> residents;  // from before it, by size class
  std::vector<std::size_t> alone, found;
};

class SnapshotJoin {
 public:
  SnapshotJoin(const Prediction& prediction, const MemorySnapshot& snapshot)
      : step_(*prediction.step), snapshot_(snapshot), history_(history_of(snapshot)) {
    plan_side();
    std::vector<std::int64_t> sizes;
    for (const Life& life : plan_.lives) sizes.push_back(life.size);
    const std::optional<StepWindow> window = step_window(history_, sizes);
    check(window.has_value(), ErrorKind::bad_input, [&] {
      return fmt::format(
          "{}: no step like the plan's is in its history of {} events: is it of another model, "
          "batch or strategy, or was less than one step recorded?",
          snapshot.source, snapshot.events.size());
    });
    window_ = *window;
    measured_side();
  }

  void fill(SnapshotComparison& out) {
    figures(out);
    pair_residents();
    const JoinedLives joined =
        join_lives(plan_.lives, measured_.lives, static_cast<std::int64_t>(step_.ops.size()),
                   window_.begin, window_.end);
    std::vector<bool> planned(plan_.lives.size()), seen(measured_.lives.size());
    for (const auto& [p, m] : joined.pairs) {
      planned[p] = seen[m] = true;
      plan_.found.push_back(plan_.of[p]);
      measured_.found.push_back(measured_.of[m]);
      if (!plan_.lives[p].stays && measured_.lives[m].stays) outlived_.push_back(plan_.of[p]);
    }
    for (const auto& [p, parts] : joined.parts) {
      planned[p] = true;
      plan_.found.push_back(plan_.of[p]);
      for (const std::size_t m : parts) {
        seen[m] = true;
        measured_.found.push_back(measured_.of[m]);
      }
    }
    for (const std::size_t m : joined.scratch) {
      seen[m] = true;
      ++out.scratch;
      out.scratch_bytes += history_.allocations[measured_.of[m]].requested;
    }
    pair_first_step(seen);
    for (std::size_t i = 0; i < planned.size(); ++i)
      if (!planned[i]) plan_.alone.push_back(plan_.of[i]);
    for (std::size_t i = 0; i < seen.size(); ++i)
      if (!seen[i]) measured_.alone.push_back(measured_.of[i]);
    shares(out);
    out.only_planned = planned_groups(plan_.alone);
    out.outlived = planned_groups(outlived_);
    out.only_measured = measured_groups();
  }

 private:
  void plan_side() {
    const auto end = static_cast<std::int64_t>(step_.ops.size());
    for (std::size_t i = 0; i < step_.tensors.size(); ++i) {
      const TensorSpan& t = step_.tensors[i];
      if (t.bytes <= Bytes(0)) continue;
      if (t.born < 0) {
        plan_.residents[size_class(t.bytes)].push_back(i);
        continue;
      }
      plan_.of.push_back(i);
    }
    std::ranges::stable_sort(plan_.of, {}, [&](std::size_t i) { return step_.tensors[i].born; });
    for (const std::size_t i : plan_.of) {
      const TensorSpan& t = step_.tensors[i];
      plan_.lives.push_back({size_class(t.bytes), t.born, t.died, t.died >= end,
                             phase_of(step_.ops[static_cast<std::size_t>(t.born)].phase), false});
    }
  }

  void measured_side() {
    for (std::size_t i = 0; i < history_.allocations.size(); ++i) {
      const SnapshotAllocation& a = history_.allocations[i];
      if (a.born > window_.end) break;
      const SnapshotStack& stack = snapshot_.stacks[a.stack];
      if (a.born <= window_.begin) {
        if (a.died > window_.begin) measured_.residents[size_class(a.requested)].push_back(i);
        continue;
      }
      measured_.of.push_back(i);
      measured_.lives.push_back(
          {size_class(a.requested), a.born, a.died, a.died > window_.end, stack.phase, stack.own});
    }
  }

  // Of one size the plan's are those that were there first, and not of the user's own lines.
  void pair_residents() {
    for (auto& [size, planned] : plan_.residents) {
      std::vector<std::size_t>& seen = measured_.residents[size];
      std::ranges::stable_sort(seen, {}, [&](std::size_t i) {
        const SnapshotAllocation& a = history_.allocations[i];
        return std::pair(snapshot_.stacks[a.stack].own, a.born);
      });
      const std::size_t both = std::min(planned.size(), seen.size());
      for (std::size_t i = 0; i < planned.size(); ++i)
        (i < both ? plan_.found : plan_.alone).push_back(planned[i]);
      for (std::size_t i = 0; i < both; ++i) measured_.found.push_back(seen[i]);
      seen.erase(seen.begin(), seen.begin() + static_cast<std::ptrdiff_t>(both));
    }
    for (const auto& [size, seen] : measured_.residents)
      measured_.alone.insert(measured_.alone.end(), seen.begin(), seen.end());
  }

  // Where the step is the first, what stays is allocated within it, or before it in the window.
  void pair_first_step(std::vector<bool>& seen) {
    std::map<std::int64_t, std::vector<std::size_t>> staying;  // the last first
    for (std::size_t i = measured_.lives.size(); i-- > 0;)
      if (!seen[i] && measured_.lives[i].stays) staying[measured_.lives[i].size].push_back(i);
    std::erase_if(plan_.alone, [&](std::size_t tensor) {
      std::vector<std::size_t>& same = staying[size_class(step_.tensors[tensor].bytes)];
      if (same.empty()) return false;
      seen[same.back()] = true;
      measured_.found.push_back(measured_.of[same.back()]);
      same.pop_back();
      plan_.found.push_back(tensor);
      return true;
    });
  }

  Bytes allocated(std::int64_t event) const {
    return event < 0 ? history_.allocated_before
                     : history_.allocated[static_cast<std::size_t>(event)];
  }

  void figures(SnapshotComparison& out) {
    out.events = snapshot_.events.size();
    out.first_event = static_cast<std::size_t>(window_.begin + 1);
    out.last_event = static_cast<std::size_t>(std::max<std::int64_t>(window_.end, 0));
    peak_at_ = window_.begin;
    for (std::int64_t i = window_.begin; i <= window_.end; ++i) {
      if (allocated(i) > allocated(peak_at_)) peak_at_ = i;
      const Bytes reserved =
          i < 0 ? history_.reserved_before : history_.reserved[static_cast<std::size_t>(i)];
      out.measured_reserved = std::max(out.measured_reserved, reserved);
    }
    out.measured_peak = allocated(peak_at_);
    out.left_behind = allocated(window_.end) - allocated(window_.begin);
    out.highest_allocated = history_.allocated_before;
    out.highest_reserved = history_.reserved_before;
    for (std::size_t i = 0; i < history_.allocated.size(); ++i) {
      out.highest_allocated = std::max(out.highest_allocated, history_.allocated[i]);
      out.highest_reserved = std::max(out.highest_reserved, history_.reserved[i]);
    }
  }

  bool lives_at_peak(const SnapshotAllocation& a) const {
    return a.born <= peak_at_ && a.died > peak_at_;
  }

  void shares(SnapshotComparison& out) const {
    const auto add = [](SnapshotShare& share, Bytes size, bool found) {
      ++share.count;
      share.bytes += size;
      if (!found) return;
      ++share.found;
      share.found_bytes += size;
    };
    for (const bool found : {true, false}) {
      for (const std::size_t i : found ? plan_.found : plan_.alone)
        add(out.plan, step_.tensors[i].bytes, found);
      for (const std::size_t i : found ? measured_.found : measured_.alone) {
        const SnapshotAllocation& a = history_.allocations[i];
        add(out.measured, a.requested, found);
        if (lives_at_peak(a)) add(out.at_peak, a.requested, found);
      }
    }
  }

  using Key = std::tuple<std::string, std::string, Bytes>;  // name, category, size
  static std::vector<SnapshotGroup> sorted(std::map<Key, SnapshotGroup>&& groups) {
    std::vector<SnapshotGroup> out;
    for (auto& [key, group] : groups) {
      std::tie(group.name, group.category, group.size) = key;
      out.push_back(std::move(group));
    }
    std::ranges::stable_sort(out, std::greater<>{}, &SnapshotGroup::total);
    return out;
  }

  std::vector<SnapshotGroup> planned_groups(const std::vector<std::size_t>& indices) const {
    const auto end = static_cast<std::int64_t>(step_.ops.size());
    std::map<Key, SnapshotGroup> groups;
    for (const std::size_t i : indices) {
      const TensorSpan& t = step_.tensors[i];
      SnapshotGroup& group = groups[{without_numbers(t.name), t.category, t.bytes}];
      ++group.count;
      group.stays = group.stays || t.died >= end;
    }
    return sorted(std::move(groups));
  }

  std::vector<SnapshotGroup> measured_groups() const {
    std::map<Key, SnapshotGroup> groups;
    for (const std::size_t i : measured_.alone) {
      const SnapshotAllocation& a = history_.allocations[i];
      SnapshotGroup& group = groups[{snapshot_.stacks[a.stack].where, "", a.requested}];
      ++group.count;
      group.at_peak = group.at_peak || lives_at_peak(a);
      group.stays = group.stays || a.died > window_.end;
    }
    return sorted(std::move(groups));
  }

  const StepLedger& step_;
  const MemorySnapshot& snapshot_;
  AllocationHistory history_;
  StepWindow window_;
  std::int64_t peak_at_ = -1;
  Side plan_, measured_;
  std::vector<std::size_t> outlived_;
};

void check_plan_for_snapshot(const Prediction& prediction) {
  check(prediction.contradiction.empty(), ErrorKind::bad_input, prediction.contradiction);
  check(prediction.step.has_value() && !prediction.kinds.empty(), ErrorKind::bad_input, [&] {
    return fmt::format(
        "{}: its tensors are abridged; a snapshot is compared with a plan in full detail "
        "(plimsoll fit … --detail --json FILE)",
        prediction.source);
  });
}
}  // namespace

SnapshotComparison compare(const Prediction& prediction, const MemorySnapshot& snapshot,
                           double tolerance) {
  check_plan_for_snapshot(prediction);
  SnapshotComparison out;
  out.prediction = prediction.source;
  out.snapshot = snapshot.source;
  out.fingerprint = prediction.fingerprint;
  out.model = prediction.model;
  out.stack = prediction.stack;
  out.device = snapshot.device;
  out.predicted_peak = prediction.kinds.front().peak;
  if (prediction.reserved) out.predicted_reserved = prediction.kinds.front().reserved;
  SnapshotJoin(prediction, snapshot).fill(out);
  const double off = std::abs((out.measured_peak - out.predicted_peak).real());
  out.agrees =
      off <= tolerance * out.predicted_peak.real() && out.at_peak.without_partner() <= tolerance;
  if (snapshot.devices > 1)
    out.notes.push_back(fmt::format("of {} devices in the snapshot, device {} holds the most",
                                    snapshot.devices, snapshot.device));
  if (prediction.kinds.size() > 1)
    out.notes.push_back(fmt::format(
        "the plan has {} kinds of rank; the snapshot is held against the first, of rank {}",
        prediction.kinds.size(), prediction.kinds.front().rank));
  return out;
}

}  // namespace plimsoll::reports
