// Whether a measurement agrees with its prediction, and where it does not.
//
//   L1  requested bytes: every tensor's bytes, birth and death, every op boundary and high water
//   L2  reserved bytes
//   L3  bytes of the device: what neither the allocator nor the plan's overheads account for
//   L4  time
// Our own runtime must meet L1 and L2 exactly. Other stacks are estimates: their peak and reserved
// bytes must be within a tolerance. L3 counts where the plan gives a range; L4 is reported.
#pragma once

#include "reports/measurement.h"
#include "reports/prediction.h"

namespace plimsoll::reports {

struct Difference {
  // In the order in which differences of one moment count.
  enum class Kind {
    missing_rank,
    op,  // another op, or none
    only_predicted,
    only_measured,
    bytes,
    category,
    birth,
    death,
    high_water,
    allocated,
    figure,  // of the rank's summary: `where` says which
  };
  Kind kind = Kind::figure;
  std::int64_t rank = 0;
  std::int64_t at = -1;  // the op from which on the two differ
  std::string tensor;  // "": none
  std::string where;  // the op, or the name of the figure
  std::string predicted, measured;  // for people
  std::optional<Bytes> predicted_bytes, measured_bytes;
  std::string text() const;  // one line, names and both sizes in it
};
const char* name_of(Difference::Kind kind);

struct Level {
  enum class Verdict { exact, within, explained, differs, not_compared };
  Verdict verdict = Verdict::not_compared;
  std::string text;
};
const char* name_of(Level::Verdict verdict);

struct Row {
  std::string name;
  std::optional<Bytes> predicted, measured;
  std::optional<Bytes> difference() const {
    if (!predicted || !measured) return std::nullopt;
    return *measured - *predicted;
  }
};

// All tensors of one name, summed.
struct TensorRow {
  Row bytes;  // its name
  std::string category;
  std::size_t predicted = 0, measured = 0;  // how many
};

struct RankComparison {
  std::int64_t rank = 0;
  std::vector<Row> categories;  // at the peak
  Row peak, resident, reserved, device;
  std::optional<Bytes> unaccounted;  // device - reserved - what the plan expects outside
};

struct Comparison {
  std::string prediction, measurement;  // files
  std::string fingerprint, model, stack;
  bool agrees = false;
  // Of the measurement, as it says it. A run that did not train (Measurement::trained) does not
  // agree, be its memory as predicted.
  std::string outcome = "completed";
  std::string outcome_text;  // "" where it completed
  bool detailed = false;  // tensor by tensor
  Level memory, reserved, device, time;  // L1 … L4
  // "in-sample": the plan's overheads were fitted on this very workload, so that its device bytes
  // prove nothing and stay out of summaries; "out-of-sample": on others. Nothing: not calibrated,
  // or the device is not measured.
  std::optional<std::string> sample;
  std::vector<RankComparison> ranks;
  std::size_t shown = 0;  // the rank that tables show: of the first difference, or the highest peak
  std::vector<Difference> differences;  // by moment; the first is where it began
  std::size_t op_count = 0, tensor_count = 0;  // compared on each rank
  std::vector<TensorRow> tensors;  // of the rank that is shown, by name
  std::vector<std::string> notes;

  // "" where there is none; else tensor, op, rank and both sizes.
  std::string first_difference() const;
};

inline constexpr double kTolerance = 0.05;

// Error{bad_input}: other fingerprints (the keys that differ are named), a measurement that did not
// complete, nothing to compare: a figure that was predicted and of a measured rank not measured, a
// prediction that contradicts itself. `tolerance`: relative, of stacks that are estimated.
Comparison compare(const Prediction& prediction, const Measurement& measurement,
                   double tolerance = kTolerance);

}  // namespace plimsoll::reports
