#include "models/calibration.h"

#include <algorithm>

#include "models/config_reader.h"
#include "models/specs/documents.h"

namespace plimsoll::models {

namespace {

constexpr std::int64_t kMostFiles = 1000;

std::string needed_text(const Config& from, const char* key) {
  std::string text = from.text(key, "");
  if (text.empty()) from.refuse(key, "a text");
  return text;
}

Bytes needed_bytes(const Config& from, const char* key) {
  if (!from.has(key)) from.refuse(key, "a number of bytes");
  return Bytes(from.natural(key, 0));
}

}  // namespace

Calibration read_calibration(const Config& entry) {
  Calibration out;
  out.stack = needed_text(entry, "stack");
  out.gpu = needed_text(entry, "gpu");
  out.driver = needed_text(entry, "driver");
  out.evidence = needed_text(entry, "evidence");
  out.context = needed_bytes(entry, "context_bytes");
  out.libraries = needed_bytes(entry, "libraries_bytes");
  if (entry.has("deviation_bytes")) out.deviation = Bytes(entry.natural("deviation_bytes", 0));
  out.fitted = entry.texts("fitted", kMostFiles);
  out.fitted_fingerprints = entry.texts("fitted_fingerprints", kMostFiles);
  out.judged = entry.texts("judged", kMostFiles);
  out.judged_fingerprints = entry.texts("judged_fingerprints", kMostFiles);
  if (out.fitted_fingerprints.empty())
    entry.refuse("fitted_fingerprints", "the workloads that the figures were fitted on");
  if (out.deviation && out.judged_fingerprints.empty())
    entry.refuse("deviation_bytes", "null where no other model was measured");
  return out;
}

std::vector<Calibration> read_calibrations(std::string_view text, const std::string& source) {
  const Config document = Config::parse(text, source);
  if (document.text("schema", "") != "plimsoll.calibrated_overheads/1")
    document.refuse("schema", "plimsoll.calibrated_overheads/1, as tools/evidence fit writes it,");
  std::vector<Calibration> all;
  for (const Config& entry : document.sections("entries")) {
    Calibration one = read_calibration(entry);
    for (const Calibration& other : all)
      if (other.gpu == one.gpu && other.stack == one.stack)
        entry.refuse("gpu", "one entry for each GPU and stack");
    all.push_back(std::move(one));
  }
  return all;
}

std::vector<Calibration> calibrations_of(std::string_view gpu) {
  static const std::vector<Calibration> all =
      read_calibrations(specs::document("calibrated_overheads"), "calibrated_overheads.json");
  std::vector<Calibration> out;
  std::ranges::copy_if(all, std::back_inserter(out),
                       [&](const Calibration& one) { return one.gpu == gpu; });
  return out;
}

const Calibration* find_calibration(const std::vector<Calibration>& all, std::string_view stack) {
  const auto found = std::ranges::find(all, stack, &Calibration::stack);
  return found == all.end() ? nullptr : &*found;
}

}  // namespace plimsoll::models
