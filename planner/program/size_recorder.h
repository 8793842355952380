// Records the sizes of a program, as expressions of its batch and its shards, while somebody writes
// it.
#pragma once

#include "planner/program/batch_sizes.h"

namespace plimsoll::planner {

// Listens to the thread that makes it, until it goes.
class SizeRecorder {
 public:
  // Of the program that will be written; `shards`: over how many ranks a parameter is split, where
  // the writer asks for that by value_of_shards alone.
  SizeRecorder(const models::Batch& batch, const models::StepProgram& program,
               std::int64_t shards = 1);
  ~SizeRecorder();
  SizeRecorder(const SizeRecorder&) = delete;
  SizeRecorder& operator=(const SizeRecorder&) = delete;
  // Who listens to this thread; null: nobody. Or that one's for a program.
  static SizeRecorder* current();
  static SizeRecorder* of(const models::StepProgram& program);

  SymInt variable(const models::Batch& batch, StepVariable which) const;
  SymInt shards(std::int64_t shards) const;
  // What ProgramBuilder writes.
  void tensor(std::size_t at, SymBytes bytes) { put(room_.tensors, at, bytes.value()); }
  SymBytes tensor(std::size_t at) const { return SymBytes(room_.tensors[at]); }
  void scratch(std::size_t op, SymBytes more) {
    if (op >= room_.scratch.size()) room_.scratch.resize(op + 1);
    room_.scratch[op] = room_.scratch[op] + more.value();
  }
  void times(std::size_t segment, SymInt times) { put(room_.times, segment, times); }
  void count(std::size_t group, SymInt count) { put(room_.counts, group, count); }
  // What was written from the first place to the second came once more, up to where the next of
  // both stands.
  struct Place {
    std::size_t tensor = 0, op = 0;
  };
  void repeats(const Place& first, const Place& second) {
    room_.repeats.push_back({first, second});
  }
  BatchSizes finish();

  // What SymInt does.
  SymInt add(SymOp op, SymInt a, SymInt b, std::int64_t value);
  SymInt add(const SymCall& call, std::int64_t value);
  SymInt add_highest(std::span<const SymBytes> sizes, std::span<const Multiples> sums,
                     std::int64_t value);
  std::uint32_t node_of(SymInt value);
  void guard(bool equal, SymInt a, SymInt b);

 private:
  using Slots = std::vector<BatchSizes::Slot>;
  std::uint32_t number(const SymNode& node);
  static void put(std::vector<SymInt>& all, std::size_t at, SymInt value) {
    if (at == all.size()) return all.push_back(value);
    if (at > all.size()) all.resize(at + 1);
    all[at] = value;
  }
  static Slots varying(const std::vector<SymInt>& all);
  EqualSizes equal_sizes() const;
  bool equal_ops(std::size_t first, std::size_t second, std::size_t count) const;

  struct Room {  // a thread's, for one recording after another
    HashedPlaces numbers, guarded;
    std::vector<SymInt> tensors, scratch, times, counts;
    std::vector<std::pair<Place, Place>> repeats;
    std::vector<char> with_zero;  // nodes that were compared with 0
    std::size_t most_nodes = 0;  // of earlier recordings
  };
  static Room& room();

  StepValues of_;
  const models::StepProgram& program_;
  BatchSizes out_;
  Room& room_;
};

}  // namespace plimsoll::planner
