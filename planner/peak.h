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
  Bytes states;  // persistent parameters and optimizer states
};

// Reuses its memory from one program to the next, and what it has derived: where tensors are born
// and die depends on operands and repeats only, so for a program that differs in sizes from an
// earlier one the lifetimes stand already. Not thread-safe.
class PeakFinder {
 public:
  // `likeness`: programs that probably have equal structure have equal numbers. Only a hint: the
  // structures are compared.
  Peak find(const models::StepProgram& program, std::size_t likeness = 0);

 private:
  static constexpr std::size_t kLayouts = 512;  // some 20 KB each, in pairs

  // Bytes that appear or go at one place, `times` instances of a tensor.
  struct Event {
    std::uint32_t slot;  // 2 · place, + 1 for a death
    std::int32_t tensor;
    std::int64_t times;
  };
  struct Shape {
    models::GroupId group;
    models::Residency residency;
    bool operator==(const Shape&) const = default;
  };
  // The structure of a program, and what follows from it alone.
  struct Layout {
    std::vector<models::Operand> operands;
    std::vector<std::uint32_t> op_begin;
    std::vector<Shape> tensors;
    std::vector<std::int64_t> counts;  // of groups
    std::vector<models::Segment> segments;
    std::vector<std::int64_t> edges;  // of groups: iterations walked one by one
    std::vector<Event> events;
    std::size_t slots = 0;
    bool matches(const models::StepProgram& program) const;
    void copy_structure(const models::StepProgram& program);
  };

  struct Span {
    std::int64_t birth, death;  // packed positions, see peak.cpp
  };
  struct GroupPlan {
    std::int64_t count = 0;  // n
    std::int64_t distance = 0;  // D
    std::int64_t edge = 0;  // iterations walked one by one at either end of a segment
    std::int64_t low = 0, high = 0;  // instances followed one by one at either end
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
             std::int64_t first_instance, std::int64_t last_instance, std::size_t tensor,
             bool birth);
  std::size_t slot_index(const models::StepProgram& program, std::uint32_t segment,
                         std::int64_t iteration, std::int64_t op) const;
  void derive(const models::StepProgram& program, Layout& layout);
  Peak sweep(const models::StepProgram& program, const Layout& layout, Bytes resident) const;

  Layout& layout_of(const models::StepProgram& program, std::size_t likeness);

  std::vector<Layout> layouts_;
  bool second_ = false;  // of a pair: which one goes next
  std::vector<GroupPlan> groups_;
  std::vector<std::size_t> slot_begin_;  // per segment
  std::size_t slot_count_ = 0;
  std::vector<Event>* events_ = nullptr;  // of the layout that is being derived
  std::vector<Bytes> slots_;  // born and died in turns
  std::vector<Span> spans_;  // tensor × class
  std::size_t classes_ = 1;
};

}  // namespace plimsoll::planner
