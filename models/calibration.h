// Device memory outside a stack's allocator as it was measured on one kind of GPU: what
// `tools/evidence fit` made of reports/evidence/ (models/specs/calibrated_overheads.json), or of a
// user's own runs (--calibration FILE).
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/base/quantity.h"

namespace plimsoll::models {

struct Calibration {
  std::string stack, gpu;  // "plimsoll", "h200-sxm-141gb"
  std::string driver;  // "580.95.05"; other drivers take other amounts
  std::string evidence;  // the folder: "reports/evidence/2026-09-01-h200"
  Bytes context;  // of the driver, before any library
  Bytes libraries;  // their handles, and all kernels that a step loads
  // The largest difference from these figures, on the models fitted and on the others; nothing
  // where no other model was measured.
  std::optional<Bytes> deviation;
  // Files of `evidence`, and the fingerprints of their workloads.
  std::vector<std::string> fitted, fitted_fingerprints;
  std::vector<std::string> judged, judged_fingerprints;
  bool operator==(const Calibration&) const = default;
};

// One entry, as a plan has it as well.
class Config;
Calibration read_calibration(const Config& entry);

// Of a document of schema plimsoll.calibrated_overheads/1. Error{bad_input} naming `source`:
// another document, a field missing, one GPU and stack twice.
std::vector<Calibration> read_calibrations(std::string_view text, const std::string& source);

// What this build has for a GPU of the catalog, of every stack.
std::vector<Calibration> calibrations_of(std::string_view gpu);

// nullptr: none.
const Calibration* find_calibration(const std::vector<Calibration>& all, std::string_view stack);

}  // namespace plimsoll::models
