// The peak of a step program without unrolling its repeats: where its tensors are born and die
// (lifetimes.h), with their sizes.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "models/step_program.h"
#include "planner/program/lifetimes.h"

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

// Segments of one section, one after another. In bytes beyond what stays for good.
struct SectionPeak {
  models::Section section = models::Section::layers;
  Bytes entry;  // allocated when it begins
  Bytes rise;  // its high water beyond that
  Bytes scratch;  // the largest of any of its ops
  bool operator==(const SectionPeak&) const = default;
};

// Reuses its memory from one program to the next, and what it has derived: where tensors are born
// and die depends on operands and repeats only, so for a program that differs in sizes from an
// earlier one the lifetimes stand already. Not thread-safe.
class PeakFinder {
  struct Layout;

 public:
  // What follows from a program's structure alone. Whoever keeps a program to change its sizes
  // keeps this beside it; any finder can take it.
  class Known {
    friend PeakFinder;
    std::shared_ptr<const Layout> layout_;
    std::size_t likeness_ = 0;
    Lifetimes folded_;
    bool is_folded_ = false;
  };

  // `likeness`: programs that probably have equal structure have equal numbers. Only a hint: the
  // structures are compared.
  Peak find(const models::StepProgram& program, std::size_t likeness, Known& known);
  Peak find(const models::StepProgram& program) { return find(program, 0, known_); }

  // The same for the program that `known` is of, whose sizes (and counts of groups) alone may have
  // changed since.
  // `equal`: what has equal sizes in it. `largest`: no size of it is larger.
  Peak find_resized(const models::StepProgram& program, const EqualSizes& equal, Bytes largest,
                    Known& known);
  Peak find_resized(const models::StepProgram& program, const EqualSizes& equal, Known& known) {
    return find_resized(program, equal, largest_size(program), known);
  }
  Peak find_resized(const models::StepProgram& program, const EqualSizes& equal) {
    return find_resized(program, equal, known_);
  }

  // The last program's, in the order of the step.
  const std::vector<SectionPeak>& section_peaks() const { return section_peaks_; }

 private:
  static constexpr std::size_t kLayouts = 512;  // some 20 KB each, in pairs

  struct Shape {
    models::GroupId group;
    models::Residency residency;
    bool operator==(const Shape&) const = default;
  };
  // The structure of a program, and its lifetimes.
  struct Layout {
    std::vector<models::Operand> operands;
    std::vector<std::uint32_t> op_begin;
    std::vector<Shape> tensors;
    std::vector<models::Segment> segments;
    Lifetimes lifetimes;
    bool matches(const models::StepProgram& program) const;
    void copy_structure(const models::StepProgram& program);
  };
  // `Number`: std::int64_t where no sum can overflow, else Bytes, which says so.
  template <class Number>
  struct Sums {
    std::vector<Number> born_died;  // in turns, for each op
    std::vector<Number> changes;
    std::vector<Number> highest, net;  // between two cuts, relative to the first of them
    std::vector<std::uint32_t> first;  // part there
  };
  template <class Number>
  struct Sweep;

  std::shared_ptr<const Layout> layout_of(const models::StepProgram& program, std::size_t likeness);

  std::vector<std::shared_ptr<const Layout>> layouts_;
  static Bytes largest_size(const models::StepProgram& program);
  Peak sweep(const models::StepProgram& program, const Lifetimes& lifetimes, Bytes largest);

  Known known_;  // of the last program that came without
  bool second_ = false;  // of a pair: which one goes next
  LifetimeFinder lifetime_finder_;
  std::vector<SectionPeak> section_peaks_;
  Sums<std::int64_t> sums_;
  Sums<Bytes> checked_sums_;
};

}  // namespace plimsoll::planner
