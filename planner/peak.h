// The peak of a step program without unrolling its repeats.
//
// Derivation. Number the positions of a program by (segment s, iteration t, op k). An instance l of
// a tensor is touched by an operand with neighbour distance d at layer l - d, that is at iteration
// t = l - d of an ascending segment and t = n - 1 - (l - d) of a descending one. Let D be the
// largest |d| of the group. For D <= l < n - D every such layer exists, so all these instances live
// from the same (s, k, shift) to the same (s', k', shift'): one *interior* lifetime stands for all
// of them, and only the 2 D instances at the ends are followed one by one. Hence in a repeated
// segment the births and deaths of the iterations 2 D <= t < n - 2 D are equal, the memory at a
// fixed op is linear in t there, and its maximum stands in the first or in the last of them. So 4 D
// + 1 iterations are walked, however many there are.
#pragma once

#include <cstdint>
#include <vector>

#include "models/step_program.h"

namespace plimsoll::planner {

// Where in a program: `iteration` counts the runs of the segment's ops, from 0.
struct Position {
  std::uint32_t segment = 0;
  std::int64_t iteration = 0;
  std::uint32_t op = 0;  // index into StepProgram::ops
  bool operator==(const Position&) const = default;
};

struct Peak {
  Bytes bytes;  // the high water of the whole step
  Bytes resident;  // persistent tensors: allocated between steps
  Position at;  // the first place that reaches it
  Bytes scratch;  // the largest of any op
};

// Reuses its memory from one program to the next; not thread-safe.
class PeakFinder {
 public:
  Peak find(const models::StepProgram& program);

 private:
  struct Span {
    std::int64_t birth, death;  // packed positions, see peak.cpp
  };
  struct GroupPlan {
    std::int64_t count = 0;  // n
    std::int64_t distance = 0;  // D
    std::int64_t edge = 0;  // iterations walked one by one at either end of a segment
    std::int64_t low = 0, high = 0;  // instances followed one by one at either end
  };
  struct Slot {
    Bytes born, died;
  };

  static bool short_group(const GroupPlan* plan);
  void plan_groups(const models::StepProgram& program);
  void plan_slots(const models::StepProgram& program);
  void follow_touches(const models::StepProgram& program);
  void place_lifetimes(const models::StepProgram& program);
  void touch(std::size_t tensor, std::size_t first_class, std::size_t last_class, std::int64_t key);
  void touch_neighbour(const models::Operand& operand, const models::TensorDecl& decl,
                       std::uint32_t segment, bool descending, std::int64_t key_op);
  void touch_from_outside(models::TensorId tensor, models::GroupId group, int delta,
                          std::uint32_t segment, std::int64_t first, std::int64_t last,
                          std::int64_t key_op);
  void place(const models::StepProgram& program, std::int64_t key, models::GroupId group,
             std::int64_t first_instance, std::int64_t last_instance, Bytes bytes, bool birth);
  std::size_t slot_index(const models::StepProgram& program, std::uint32_t segment,
                         std::int64_t iteration, std::int64_t op) const;
  Peak sweep(const models::StepProgram& program, Bytes resident) const;

  std::vector<GroupPlan> groups_;
  std::vector<std::size_t> slot_begin_;  // per segment
  std::vector<Slot> slots_;
  std::vector<Span> spans_;  // tensor × class
  std::size_t classes_ = 1;
};

}  // namespace plimsoll::planner
