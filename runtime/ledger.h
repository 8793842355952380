// What really happened to memory: every tensor of a step with its bytes, birth and death, and every
// op boundary. Kept by one rank; knows no plan.
#pragma once

#include <limits>
#include <string>
#include <vector>

#include "models/category.h"
#include "reports/record.h"

namespace plimsoll::runtime {

// Indices of ops within the step.
inline constexpr std::int64_t kBeforeStep = -1;
inline constexpr std::int64_t kOutlivesStep = std::numeric_limits<std::int64_t>::max();

struct TensorRecord {
  std::string name;
  models::Category category = models::Category::temporaries;
  Bytes bytes;  // requested
  std::int64_t born = kBeforeStep;
  // The op in which it was given back; given back between two ops, it has lived into the second.
  std::int64_t died = kOutlivesStep;
  bool operator==(const TensorRecord&) const = default;
};

struct OpRecord {
  std::string name;
  models::Phase phase = models::Phase::forward;
  Bytes allocated;  // requested bytes that live when the op is done
  Bytes high_water;  // and the most while it ran
  bool operator==(const OpRecord&) const = default;
};

struct StepRecord {
  std::vector<TensorRecord> tensors;  // in the order of their allocation; those of before first
  std::vector<OpRecord> ops;
  Bytes resident;  // when the step began
  Bytes peak;
  std::size_t peak_op = 0;  // the first that reached it
  reports::ByCategory at_peak{};
  bool operator==(const StepRecord&) const = default;
};

class Ledger {
 public:
  using Entry = std::size_t;

  // Throws std::bad_alloc with nothing changed, the texts included.
  Entry allocated(std::string&& name, std::string&& shape, models::Category category, Bytes bytes);
  void released(Entry entry) noexcept;

  void begin_step();
  void begin_op(std::string name, models::Phase phase);
  void end_op();
  StepRecord end_step();
  bool in_op() const { return in_op_; }
  const std::string& op_name() const { return op_name_; }  // of the op that runs, or ran last
  models::Phase op_phase() const { return op_phase_; }

  Bytes live() const { return live_; }
  Bytes peak() const { return peak_; }  // since the beginning
  const reports::ByCategory& live_by_category() const { return by_category_; }
  // The largest tensors that live, one a line: name, shape, bytes.
  std::string live_table(std::size_t lines) const;

 private:
  struct Live {
    std::string name, shape;
    models::Category category = models::Category::temporaries;
    Bytes bytes;
    std::int64_t tensor = -1;  // in step_.tensors
    bool free = false;
  };
  void count(models::Category category, Bytes bytes);
  // The op that runs, or the next one.
  std::int64_t here() const {
    return static_cast<std::int64_t>(step_.ops.size()) - (in_op_ ? 1 : 0);
  }

  std::vector<Live> live_tensors_;
  std::vector<Entry> free_;
  StepRecord step_;
  bool in_step_ = false, in_op_ = false;
  std::string op_name_;
  models::Phase op_phase_ = models::Phase::forward;
  Bytes live_, peak_, op_high_;
  reports::ByCategory by_category_{};
};

}  // namespace plimsoll::runtime
