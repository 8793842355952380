// Births and deaths of a program's tensors, from its operands and repeats alone.
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
//
// Most tensors are born in every iteration and die in every iteration: they are noted once for all
// (`events`), and what a walked iteration has beyond or less than that beside it (`changes`).
#pragma once

#include <cstdint>
#include <vector>

#include "models/step_program.h"
#include "planner/program/equal_sizes.h"

namespace plimsoll::planner {

// Sizes play no part, nor do the counts of groups as long as their ends are apart (`least`): it
// stands for every program of equal structure otherwise.
struct Lifetimes {
  // One tensor that appears or goes at an op, in every iteration of the op's segment.
  struct Event {
    std::uint32_t slot;  // 2 * op, + 1 for a death
    std::int32_t tensor;
  };
  // What differs from that: `times` instances more (or less) from a cut of an iteration on, and
  // `counts` times as many as the tensor's group has.
  struct Change {
    std::uint32_t at;  // index into all changes of a sweep, see Walk
    std::int32_t tensor;
    std::int64_t times;
    std::int32_t counts;  // -1, 0, 1
  };
  // Ops one after another, in front of which no iteration differs from the others; `times` as many
  // with the same sizes (fold).
  struct Part {
    std::uint32_t op_begin = 0, op_end = 0, times = 1;
    bool cut_after = false;  // a cut: changes take place between this part and the next
  };
  // One segment as it is swept: `walked` iterations, of which the one numbered `folded` stands for
  // all that lie between the ends. Changes happen at `cuts` cuts, the same ones in each walked
  // iteration: cut c of iteration w is change change_begin + w * cuts + c.
  struct Walk {
    std::uint32_t segment = 0;
    std::uint32_t op_begin = 0, op_end = 0;
    std::uint32_t part_begin = 0, part_end = 0;
    std::uint32_t cuts = 0, change_begin = 0;
    std::int64_t walked = 1, folded = -1;
    models::GroupId group = models::kNoGroup;
  };

  std::vector<Event> events;
  std::vector<Change> changes;
  std::vector<std::int32_t> residents;  // tensors that stay
  std::vector<Walk> walks;
  std::vector<Part> parts;
  std::size_t change_count = 0;
  struct Group {
    std::int64_t count = 0;
    std::int64_t least = 0;  // from so many instances on the ends are apart
  };
  std::vector<Group> groups;

  void clear();  // keeps the memory
  bool stands_for(const std::vector<models::Group>& groups) const;
};

// Adds up equal blocks once (lifetimes_fold.cpp), for programs whose sizes are so alike.
void fold(const EqualSizes& equal, Lifetimes& lifetimes);

// Reuses its memory from one program to the next.
class LifetimeFinder {
 public:
  void find(const models::StepProgram& program, Lifetimes& lifetimes);

 private:
  struct Span {
    std::int64_t birth, death;  // packed positions, see lifetimes.cpp
  };
  struct GroupPlan {
    std::int64_t count = 0;  // n
    std::int64_t distance = 0;  // D
    std::int64_t edge = 0;  // iterations walked one by one at either end of a segment
    std::int64_t low = 0, high = 0;  // instances followed one by one at either end
    // Too few layers for the ends to be apart: every instance is followed one by one.
    bool is_short() const { return count < 2 * distance; }
    std::int64_t walked() const { return count < 2 * edge + 1 ? count : 2 * edge + 1; }
    std::int64_t classes() const { return is_short() ? count : low + high + 1; }
  };
  // A change before changes are numbered.
  struct Raw {
    std::uint32_t segment, op;
    std::int32_t tensor;
    std::int64_t walked, times;
    std::int32_t counts;
  };
  void plan_groups();
  void plan_walks();
  void follow_touches();
  void touch_neighbour(const models::Operand& operand, const models::TensorDecl& decl,
                       const models::Segment& segment, std::uint32_t s, std::int64_t op);
  void touch_from_outside(models::TensorId tensor, int delta, std::uint32_t segment,
                          std::int64_t first, std::int64_t last, std::int64_t op);
  void touch(std::size_t tensor, std::int64_t first_class, std::int64_t last_class,
             std::int64_t key);
  void place_lifetimes();
  bool place_in_each(std::int64_t key, models::GroupId group, std::size_t tensor, bool birth);
  void place(std::int64_t key, models::GroupId group, std::int64_t first_instance,
             std::int64_t last_instance, std::size_t tensor, bool birth);
  void place_in_own_segment(std::int64_t key, std::int64_t first_instance,
                            std::int64_t last_instance, std::size_t tensor, bool birth);
  void change(std::uint32_t segment, std::int64_t walked, std::int64_t op, std::size_t tensor,
              bool birth, std::int64_t times, bool counts = false);
  void number_changes();
  const GroupPlan& plan_of(models::GroupId group) const {
    return groups_[static_cast<std::size_t>(group)];
  }

  const models::StepProgram* program_ = nullptr;
  Lifetimes* out_ = nullptr;
  std::vector<GroupPlan> groups_;
  // Of each tensor all instances alike, by touches of its own group or outside of any; and where
  // instances differ, `classes_` spans from irregular_[tensor] on.
  std::vector<Span> spans_, by_class_;
  std::vector<std::int32_t> irregular_;
  std::size_t classes_ = 1;
  std::vector<std::uint32_t> walk_of_;  // of each segment
  std::vector<Raw> raw_;
};

}  // namespace plimsoll::planner
