// Adapters that are trained one after another on one base (`run --adapter A,B`).
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/adapters.h"
#include "tools/run/weights.h"

namespace plimsoll::tools {

class AdapterTasks {
 public:
  // Keeps both. Each adapter takes `steps` steps; the first is in its place.
  AdapterTasks(runtime::Trainer& trainer, const Weights& weights, std::int64_t steps);

  std::int64_t steps_in_all() const;
  // The number of a run's step, from 1, among those of its adapter.
  std::int64_t own(std::int64_t step) const;
  // Before each step, on all ranks: whose it is takes its place, and the one before is kept on the
  // host. Says its name where it is another one.
  std::optional<std::string> before(std::int64_t step);
  // When all steps are taken: with each adapter in its place, and its name. Where there are not
  // several, once, with none.
  void each(const std::function<void(const std::string& name)>& use);

 private:
  runtime::Trainer& trainer_;
  const Weights& weights_;
  std::int64_t steps_;
  std::optional<runtime::Adapters> adapters_;  // of several
  std::vector<runtime::AdapterTask> done_;
};

}  // namespace plimsoll::tools
