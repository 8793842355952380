#include "reports/same_workload.h"

#include <fmt/format.h>

#include <algorithm>

#include "models/base/utf8.h"
#include "models/json_reader.h"

namespace plimsoll::reports {

namespace {
// What a model is called, and the document's own fields, are no part of the workload.
std::vector<models::LeafDifference> workload_differences(const Prediction& prediction,
                                                         const Measurement& measurement) {
  std::vector<models::LeafDifference> all =
      models::leaf_differences(prediction.workload, measurement.workload);
  std::erase_if(all, [](const models::LeafDifference& d) {
    const auto nothing = [](const std::string& text) { return text == "null" || text == "absent"; };
    return d.path == "fingerprint" || d.path == "model.name" ||
           (nothing(d.first) && nothing(d.second));
  });
  return all;
}

std::string listed(const std::vector<models::LeafDifference>& differences) {
  constexpr std::size_t kMost = 6;
  std::string text;
  for (std::size_t i = 0; i < std::min(kMost, differences.size()); ++i)
    text += fmt::format("{}{} ({} predicted, {} measured)", i == 0 ? "" : ", ", differences[i].path,
                        shortened(differences[i].first), shortened(differences[i].second));
  if (differences.size() > kMost) text += fmt::format(", and {} more", differences.size() - kMost);
  return text;
}

}  // namespace

std::vector<std::string> check_same_workload(const Prediction& prediction,
                                             const Measurement& measurement) {
  const std::vector<models::LeafDifference> differences =
      workload_differences(prediction, measurement);
  if (prediction.fingerprint != measurement.fingerprint) {
    fail(ErrorKind::bad_input,
         fmt::format("{} and {} are about different workloads ({} and {}): {}", prediction.source,
                     measurement.source, prediction.fingerprint, measurement.fingerprint,
                     differences.empty() ? "their keys are equal, so a fingerprint was edited"
                                         : listed(differences)));
  }
  if (differences.empty()) return {};
  return {"the fingerprints are equal, but not the workloads (one was edited): " +
          listed(differences)};
}

}  // namespace plimsoll::reports
