#include "planner/memory/arena_replay.h"

#include <algorithm>

#include "models/decisions/workspace.h"

namespace plimsoll::planner {

using models::Residency;
using models::StepProgram;

std::int64_t FirstFit::place(std::int64_t bytes) {
  const std::int64_t length = round_up(Bytes(bytes), models::decisions::kBlock).value();
  for (auto hole = holes_.begin(); hole != holes_.end(); ++hole) {
    if (hole->end - hole->begin < length) continue;
    const std::int64_t address = hole->begin;
    hole->begin += length;
    if (hole->begin == hole->end) holes_.erase(hole);
    return address;
  }
  const std::int64_t address = end_;
  end_ = checked_add(end_, length);
  reserved_ = std::max(reserved_, end_);
  return address;
}

void FirstFit::release(std::int64_t address, std::int64_t bytes) {
  Hole freed{address, address + round_up(Bytes(bytes), models::decisions::kBlock).value()};
  auto next = std::lower_bound(holes_.begin(), holes_.end(), freed.begin,
                               [](const Hole& hole, std::int64_t at) { return hole.begin < at; });
  if (next != holes_.end() && next->begin == freed.end) {
    freed.end = next->end;
    next = holes_.erase(next);
  }
  if (next != holes_.begin() && std::prev(next)->end == freed.begin) {
    freed.begin = std::prev(next)->begin;
    next = holes_.erase(std::prev(next));
  }
  if (freed.end == end_)
    end_ = freed.begin;  // nothing above it is in use
  else
    holes_.insert(next, freed);
}

Bytes arena_reserved(const StepProgram& program, const Timeline& timeline) {
  const auto bytes_of = [&](const Lifetime& life) {
    return program.tensors[static_cast<std::size_t>(life.tensor)].bytes.value();
  };
  const auto persists = [&](const Lifetime& life) {
    return program.tensors[static_cast<std::size_t>(life.tensor)].residency ==
           Residency::persistent;
  };
  FirstFit arena;
  for (const Lifetime& life : timeline.lifetimes)
    if (persists(life) && bytes_of(life) > 0) (void)arena.place(bytes_of(life));

  struct Block {
    std::int64_t address, bytes;
  };
  std::vector<std::vector<Block>> dying(timeline.steps.size());
  auto next = timeline.touched.begin();
  for (std::size_t step = 0; step < timeline.steps.size(); ++step) {
    for (; next != timeline.touched.end(); ++next) {
      const Lifetime& life = timeline.lifetimes[*next];
      if (persists(life) || bytes_of(life) == 0) continue;
      if (life.birth != static_cast<std::int64_t>(step)) break;
      const std::int64_t bytes = bytes_of(life);
      dying[static_cast<std::size_t>(life.death)].push_back({arena.place(bytes), bytes});
    }
    const std::int64_t scratch = program.ops[timeline.steps[step].at.op].scratch.value();
    if (scratch > 0) dying[step].push_back({arena.place(scratch), scratch});
    for (const Block& block : dying[step]) arena.release(block.address, block.bytes);
    dying[step] = {};
  }
  return Bytes(arena.reserved());
}

}  // namespace plimsoll::planner
