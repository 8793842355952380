// One training step of one rank as flat data: tensors, ops with operands, repeated segments.
//
// Byte counts per category, births and deaths are *not* stored: they follow from the operands
// (planner/program/lifetimes.h). A tensor is born at its first touch and dead after its last one.
// What ownership really does beyond that is declared: `Residency::persistent`, an alias
// (operands name the owner of the storage), a `release` touch (the op where an owner lets go).
//
// Equal blocks are stored once. A Group is a repeated axis (the layers); a tensor of a group has
// one instance per layer; a Segment walks a group's layers up (forward) or down (backward) and runs
// its ops once per layer. An operand may name the instance `delta` layers away; where that layer
// does not exist, it names `beyond` (a tensor outside the group) or nothing.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "models/base/quantity.h"
#include "models/category.h"

namespace plimsoll::models {

using TensorId = std::int32_t;
using GroupId = std::int16_t;
inline constexpr TensorId kNoTensor = -1;
inline constexpr GroupId kNoGroup = -1;

// Whose pool an allocation comes from: a caching allocator never reuses a block across streams.
// next: of torch's pool of streams the one whose turn it is (torch.cuda.Stream()).
enum class Stream : std::uint8_t { compute, gather, reduce, cast, next };

// carried: like `step`, but its memory goes back only when the next step begins, before all else.
enum class Residency : std::uint8_t { step, persistent, carried };

struct TensorDecl {
  const char* name = "";  // static text; inside a group relative to "layers.<i>."
  Bytes bytes;  // of one instance, as the stack's allocator counts it
  GroupId group = kNoGroup;
  std::uint16_t layer = 0;  // which of the group's `stride` layers
  Category category = Category::activations;
  Stream stream = Stream::compute;
  Residency residency = Residency::step;
};

enum class Access : std::uint8_t { read, write, update, release };

struct Operand {
  TensorId tensor = kNoTensor;
  TensorId beyond = kNoTensor;
  std::int8_t delta = 0;
  Access access = Access::read;
};

struct Op {
  const char* name = "";
  std::uint32_t operand_begin = 0;
  std::uint32_t operand_count = 0;
  // Allocated and freed inside the op, on top of all its operands, at the op's own high water.
  Bytes scratch;
  Category scratch_category = Category::temporaries;
  Phase phase = Phase::forward;
  std::uint16_t layer = 0;  // which of the group's `stride` layers
};

struct Group {
  const char* prefix = "layers";
  std::int64_t first = 0;  // layer of the first instance, for names
  std::int64_t count = 0;  // instances
  std::int64_t stride = 1;  // layers that one instance covers (recompute every k layers)
};

// Which choices a segment's ops follow from: the kind of loss is the matter of the ops between the
// final norm and the layers' backward, the optimizer's implementation that of its step.
enum class Section : std::uint8_t { layers, loss, optimizer };

struct Segment {
  std::uint32_t op_begin = 0;
  std::uint32_t op_end = 0;
  GroupId group = kNoGroup;  // kNoGroup: the ops run once
  bool descending = false;
  // Equal micro-batches in a row are stored once; memory repeats, work is multiplied.
  std::int64_t times = 1;
  Section section = Section::layers;
};

struct StepProgram {
  std::vector<TensorDecl> tensors;
  std::vector<Op> ops;
  std::vector<Operand> operands;
  std::vector<Group> groups;
  std::vector<Segment> segments;

  void clear();  // keeps the memory
  // How long its rows are, so that the next program of its kind need not grow.
  struct Lengths {
    std::size_t tensors = 0, ops = 0, operands = 0, groups = 0, segments = 0;
  };
  Lengths lengths() const;
  void reserve(const Lengths& lengths);
  std::span<const Operand> operands_of(const Op& op) const {
    return {operands.data() + op.operand_begin, op.operand_count};
  }
  std::int64_t repeats(const Segment& segment) const {
    return segment.group == kNoGroup ? 1 : groups[static_cast<std::size_t>(segment.group)].count;
  }
};

}  // namespace plimsoll::models
