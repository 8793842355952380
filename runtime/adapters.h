// LoRA adapters between steps: merged into the base weights and out of them again, and exchanged
// between tasks. All ranks call each operation together.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "runtime/trainer.h"

namespace plimsoll::runtime {

// One task's adapters off the device, on the host: what one rank stores of A, B, their masters and
// moments, unit by unit and state by state, and how many steps their optimizer has made.
struct AdapterTask {
  std::vector<std::vector<std::byte>> states;
  std::int64_t steps = 0;
};

// An adapter's values on the host.
struct AdapterValues {
  std::span<const float> a, b;  // [rank, in], [out, rank]
  double alpha = 0;
  bool transposed = false;  // the weight is stored [in, out]
};
// weight += alpha / rank · B · A, in fp32, as the weight is stored: the bits that Adapters::merge
// makes on a host before it rounds them.
void add_adapter(const AdapterValues& adapter, const Extents& shape, std::span<float> weight);

class Adapters {
 public:
  // Keeps `trainer`. Error{bad_input}: it trains no adapters.
  explicit Adapters(Trainer& trainer);

  // W += alpha / rank · B · A, summed in fp32 and rounded once to W's dtype; then B is 0, so that
  // the model computes what it did, up to that rounding (16 bits: half a unit in the last place of
  // each element). The same bits under every sharding. This rank's bytes of W, A and B stay on the
  // host: subtracting would not bring W back, since what a rounded sum has lost is lost.
  // Error{bad_input}: merged already. Error{unsupported}: W is trained too, from masters, or
  // packed.
  void merge();
  // Every bit of weights and optimizer states is as it was before `merge`. Error{bad_input}: not
  // merged, or steps have been taken since.
  void unmerge();
  bool merged() const { return !bases_.empty(); }

  // What is there becomes a task, `next` takes its place and goes on as if it had never been away
  // (but for the loss scale, the numbers of steps and what is keyed by them: those are the run's).
  // Error{bad_input}: merged. Error{internal}: of another model or sharding.
  AdapterTask swap(const AdapterTask& next);
  AdapterTask save() const;
  // A new task: A and B from `read`, optimizer states 0. Error{bad_input}: merged.
  void load(const ReadParameter& read);

 private:
  // An adapted weight: indices of parameters in their layer's unit.
  struct Site {
    std::size_t layer, weight, a, b;
    bool transposed;  // weight stored [in, out]
  };
  void expect_unmerged(const char* what) const;
  void merge(const Site& site, const std::vector<std::vector<float>>& adapters);
  void restore(const AdapterTask& task);
  template <class Visit>
  void each_state(Visit visit) const;

  Trainer& trainer_;
  double alpha_;
  std::vector<Site> sites_;
  // Merged: what W was, site by site, and the adapters.
  std::vector<std::vector<std::byte>> bases_;
  AdapterTask unmerged_;
};

}  // namespace plimsoll::runtime
