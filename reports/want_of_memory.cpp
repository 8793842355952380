#include "reports/want_of_memory.h"

#include <fmt/format.h>

#include <algorithm>

namespace plimsoll::reports {

namespace {
constexpr std::size_t kMostTensors = 10;

// The moment at which there is first no room, and the tensor that finds none.
struct Shortage {
  std::int64_t at = -1;  // an op; -1: before the step
  const TensorLine* wanted = nullptr;
  Bytes needed;  // all that would live then
};

// Where rounding alone is too much: at the peak.
Shortage find_shortage(const Plan& plan, Bytes room) {
  Shortage out;
  for (const TensorLine& tensor : plan.tensors) {
    if (tensor.born_op != -1) continue;
    out.needed += tensor.bytes;
    out.wanted = &tensor;
    if (out.needed > room) return out;
  }
  std::size_t at = 0;
  for (std::size_t i = 0; i < plan.timeline.size() && plan.timeline[at].high_water <= room; ++i)
    if (plan.timeline[i].high_water > plan.timeline[at].high_water) at = i;
  out = {static_cast<std::int64_t>(at), nullptr, plan.timeline[at].high_water};
  for (const TensorLine& tensor : plan.tensors)
    if (tensor.born_op == out.at && (!out.wanted || tensor.bytes > out.wanted->bytes))
      out.wanted = &tensor;
  return out;
}
}  // namespace

std::string want_of_memory(const Plan& plan, const Terminal& terminal) {
  const Bytes usable = plan.usable.value_or(Bytes(0));
  std::string text = coloured(
      fmt::format("DOES NOT FIT: {} needed on each rank, {} usable: {} too much",
                  bytes_text(plan.device), bytes_text(usable), bytes_text(plan.device - usable)),
      Colour::red, terminal);
  text += '\n';
  if (plan.timeline.empty()) return text;
  const Shortage shortage = find_shortage(plan, usable - plan.overhead.total());
  const bool before = shortage.at < 0;
  std::string place = "before the step";
  if (!before) {
    const TimelinePoint& point = plan.timeline[static_cast<std::size_t>(shortage.at)];
    place = fmt::format("at op {}, {} {}", shortage.at, point.phase, point.op);
  }
  if (shortage.wanted != nullptr)
    place = fmt::format("No room for {} ({}) {}", shortage.wanted->name,
                        bytes_text(shortage.wanted->bytes), place);
  else
    place = "No room " + place;
  for (const std::string& line :
       wrapped(fmt::format("{}: {} would live there at once.", place, bytes_text(shortage.needed)),
               terminal.columns, "  "))
    text += printable(line) + "\n";
  std::vector<const TensorLine*> live;
  for (const TensorLine& tensor : plan.tensors) {
    if (tensor.born_op && tensor.dies_op && *tensor.born_op <= shortage.at &&
        *tensor.dies_op >= shortage.at)
      live.push_back(&tensor);
    if (before && &tensor == shortage.wanted) break;
  }
  std::ranges::stable_sort(live, std::greater(), [](const TensorLine* t) { return t->bytes; });
  text += "\nLiving there\n";
  for (std::size_t i = 0; i < std::min(kMostTensors, live.size()); ++i)
    text += "  " + padded(clipped(printable(live[i]->name), 48, terminal), 48) +
            right(bytes_text(live[i]->bytes), 11) + "  " + live[i]->category + "\n";
  if (live.size() > kMostTensors) {
    Bytes rest;
    for (std::size_t i = kMostTensors; i < live.size(); ++i) rest += live[i]->bytes;
    text += "  " + padded(fmt::format("{} more", live.size() - kMostTensors), 48) +
            right(bytes_text(rest), 11) + "\n";
  }
  return text;
}

}  // namespace plimsoll::reports
