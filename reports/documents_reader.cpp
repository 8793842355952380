// Plans and measurements back from their documents.
#include <cmath>
#include <set>

#include "models/config_reader.h"
#include "reports/document_check.h"
#include "reports/measurement.h"
#include "reports/prediction.h"

namespace plimsoll::reports {

namespace {
using models::Config;

Config part(const Config& from, const char* key) {
  const std::optional<Config> section = from.section(key);
  if (!section) from.refuse(key, "an object");
  return *section;
}

// Bytes that may be null or absent.
std::optional<Bytes> bytes(const Config& from, const char* key) {
  if (!from.has(key)) return std::nullopt;
  return Bytes(from.natural(key, 0));
}

Bytes needed_bytes(const Config& from, const char* key) {
  const std::optional<Bytes> found = bytes(from, key);
  if (!found) from.refuse(key, "a number of bytes");
  return *found;
}

std::optional<double> real(const Config& from, const char* key) {
  if (!from.has(key)) return std::nullopt;
  return from.real(key, 0);
}

// An index of an op: -1, 0, ….
std::int64_t index(const Config& from, const char* key) {
  constexpr double kMost = 1e15;
  const double value = from.has(key) ? from.real(key, -2) : -2;
  if (value < -1 || value > kMost || value != std::floor(value))
    from.refuse(key, "an index of the timeline, or -1,");
  return static_cast<std::int64_t>(value);
}

std::optional<ByCategory> by_category(const Config& from, const char* key) {
  const std::optional<Config> section = from.section(key);
  if (!section) return std::nullopt;
  ByCategory parts{};
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const std::string name =
        std::string(models::name_of(static_cast<models::Category>(i))) + "_bytes";
    parts[i] = needed_bytes(*section, name.c_str());
  }
  return parts;
}

std::optional<States> states(const Config& from) {
  const std::optional<Config> section = from.section("states");
  if (!section) return std::nullopt;
  return States{needed_bytes(*section, "parameters_bytes"),
                needed_bytes(*section, "gradients_bytes"),
                needed_bytes(*section, "optimizer_bytes")};
}

StepLedger ledger(const Config& from) {
  StepLedger out;
  for (const Config& op : from.sections("timeline"))
    out.ops.push_back({op.text("op", ""), op.text("phase", ""), needed_bytes(op, "allocated_bytes"),
                       needed_bytes(op, "high_water_bytes")});
  const auto ops = static_cast<std::int64_t>(out.ops.size());
  for (const Config& tensor : from.sections("tensors")) {
    // What an allocator holds beyond its tensors lives at no op (as in prediction.cpp).
    if (!tensor.has("born_op") && !tensor.has("dies_op")) continue;
    out.tensors.push_back({tensor.text("name", ""), tensor.text("category", ""),
                           needed_bytes(tensor, "bytes"), index(tensor, "born_op"),
                           index(tensor, "dies_op")});
    const TensorSpan& span = out.tensors.back();
    if (span.born >= ops) tensor.refuse("born_op", "less than the number of ops");
    if (span.died < span.born || span.died > ops)
      tensor.refuse("dies_op", "from born_op to the number of ops");
  }
  return out;
}

struct Subject {
  std::string fingerprint, workload, model, stack;
  std::int64_t ranks = 1;
};

Subject subject(const Config& document) {
  const Config workload = part(document, "workload");
  Subject out;
  out.fingerprint = workload.text("fingerprint", "");
  if (out.fingerprint.empty()) workload.refuse("fingerprint", "the workload's name");
  out.workload = workload.dump();
  out.model = part(workload, "model").text("name", "");
  out.stack = part(workload, "stack").text("name", "");
  out.ranks = part(workload, "strategy").count("world_size", 1);
  return out;
}

MeasuredRank measured_rank(const Config& from) {
  MeasuredRank out;
  out.rank = from.natural("rank", 0);
  out.peak = bytes(from, "peak_bytes");
  out.resident = bytes(from, "resident_bytes");
  out.reserved = bytes(from, "reserved_bytes");
  out.initial_reserved = bytes(from, "initial_reserved_bytes");
  out.device = bytes(from, "device_bytes");
  out.states = states(from);
  out.at_peak = by_category(from, "at_peak");
  if (const std::optional<Config> peak = from.section("peak")) {
    out.peak_phase = peak->text("phase", "");
    out.peak_where = peak->text("where", "");
  }
  for (const Config& reading : from.sections("driver"))
    out.driver.push_back({reading.text("after", ""), needed_bytes(reading, "used_bytes"),
                          needed_bytes(reading, "reserved_bytes")});
  for (const Config& seen : from.sections("ledgers"))
    out.ledgers.push_back(
        {seen.naturals("steps", 1 << 20), seen.flag("skipped", false), ledger(seen)});
  return out;
}
}  // namespace

Prediction read_prediction(std::string_view text, const std::string& source) {
  Prediction out;
  out.contradiction = check_plan(text, source);
  const Config document = Config::parse(text, source);
  out.source = source;
  Subject about = subject(document);
  out.fingerprint = std::move(about.fingerprint);
  out.workload = std::move(about.workload);
  out.model = std::move(about.model);
  out.stack = std::move(about.stack);
  out.ranks = about.ranks;
  if (document.has("fits")) out.fits = document.flag("fits", false);
  out.resident = bytes(document, "resident_bytes");
  out.reserved = bytes(document, "reserved_bytes");
  out.device = bytes(document, "device_bytes");
  if (const std::optional<Config> outside = document.section("outside_allocator"))
    out.overhead = needed_bytes(*outside, "context_bytes") +
                   needed_bytes(*outside, "libraries_bytes") + needed_bytes(*outside, "nccl_bytes");
  if (const std::optional<Config> seen = document.section("calibration"))
    out.calibration = models::read_calibration(*seen);
  if (const std::optional<Config> range = document.section("range")) {
    out.range_low = needed_bytes(*range, "low_bytes");
    out.range_high = needed_bytes(*range, "high_bytes");
  }
  if (const std::optional<Config> time = document.section("time"))
    out.step_seconds = real(*time, "step_seconds");
  if (!document.has("peak_bytes")) return out;  // model states only
  for (const Config& kind : document.sections("ranks")) {
    const std::optional<ByCategory> at_peak = by_category(kind, "at_peak");
    const std::optional<States> kept = states(kind);
    if (!at_peak || !kept) kind.refuse("rank", "at_peak and states beside it");
    RankKind& read = out.kinds.emplace_back();
    read.rank = kind.natural("rank", 0);
    read.count = kind.count("count", 1);
    read.pipeline_stage = kind.natural("pipeline_stage", 0);
    read.peak = needed_bytes(kind, "peak_bytes");
    read.at_peak = *at_peak;
    read.states = *kept;
    read.reserved = bytes(kind, "reserved_bytes").value_or(Bytes(0));
    for (const Config& span : kind.sections("spans"))
      read.spans.push_back({span.natural("first", 0), span.natural("last", 0)});
  }
  const std::vector<Config> tensors = document.sections("tensors");
  if (!tensors.empty() && tensors.front().has("born_op")) out.step = ledger(document);
  return out;
}

MeasuredRank read_measured_rank(std::string_view text, const std::string& source) {
  return measured_rank(Config::parse(text, source));
}

Measurement read_measurement(std::string_view text, const std::string& source) {
  check_measurement(text, source);
  const Config document = Config::parse(text, source);
  Measurement out;
  out.source = source;
  Subject about = subject(document);
  out.fingerprint = std::move(about.fingerprint);
  out.workload = std::move(about.workload);
  out.model = std::move(about.model);
  out.stack = std::move(about.stack);
  out.world = about.ranks;
  out.kind = document.text("kind", "");
  out.measured_at = document.text("measured_at", "");
  out.outcome = document.text("outcome", "");
  if (const std::optional<Config> environment = document.section("environment"))
    if (const std::optional<Config> device = environment->section("device"))
      if (device->has("driver")) out.environment.driver = device->text("driver", "");
  if (const std::optional<Config> error = document.section("error"))
    out.error = Failure{error->text("kind", ""), error->text("message", ""), std::nullopt};
  std::set<std::int64_t> seen;
  for (const Config& rank : document.sections("ranks")) {
    out.ranks.push_back(measured_rank(rank));
    if (out.ranks.back().rank >= out.world) rank.refuse("rank", "less than world_size");
    if (!seen.insert(out.ranks.back().rank).second) rank.refuse("rank", "each rank once");
  }
  if (const std::optional<Config> time = document.section("time"))
    out.step_seconds = real(*time, "step_seconds");
  return out;
}

}  // namespace plimsoll::reports
