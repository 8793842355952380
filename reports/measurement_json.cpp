#include "reports/measurement_json.h"

#include <algorithm>
#include <cmath>

#include "reports/comparison_json.h"

namespace plimsoll::reports {

namespace {
using Layout = JsonWriter::Layout;

void write_pairs(JsonWriter& json, const char* key,
                 const std::vector<std::pair<std::string, std::string>>& pairs) {
  json.key(key);
  json.begin_object();
  for (const auto& [name, value] : pairs) json.member(name, value);
  json.end_object();
}

void write_environment(JsonWriter& json, const Environment& environment) {
  json.key("environment");
  json.begin_object();
  json.key("device");
  json.begin_object();
  json.member("name", environment.device);
  json.member("capacity_bytes", environment.capacity);
  json.member("driver", environment.driver);
  json.member("other_processes", environment.other_processes
                                     ? std::optional<std::int64_t>(*environment.other_processes)
                                     : std::nullopt);
  json.end_object();
  write_pairs(json, "versions", environment.versions);
  write_pairs(json, "variables", environment.variables);
  json.end_object();
}

void write_error(JsonWriter& json, const std::optional<Failure>& error) {
  json.key("error");
  if (!error) return json.value(nullptr);
  json.begin_object();
  json.member("kind", error->kind);
  json.member("message", error->message);
  json.member("step", error->step);
  json.member("phase", nullptr);
  json.member("tried_bytes", nullptr);
  json.member("live", nullptr);
  json.end_object();
}

void write_clocks(JsonWriter& json, const std::optional<Clocks>& clocks) {
  json.key("clocks");
  if (!clocks) return json.value(nullptr);
  json.begin_object(Layout::line);
  json.member("samples", clocks->samples);
  json.member("sm_clock_mhz", clocks->sm_mhz);
  json.member("memory_clock_mhz", clocks->memory_mhz);
  json.member("power_watts", clocks->power_watts);
  json.member("temperature_c", clocks->temperature_celsius);
  json.end_object();
}

void write_libraries(JsonWriter& json, const std::optional<LibraryNotes>& notes) {
  json.key("libraries");
  if (!notes) return json.value(nullptr);
  json.begin_object();
  json.key("refusals");
  json.begin_array();
  for (const LibraryNotes::Refusal& refusal : notes->refusals) {
    json.begin_object(Layout::line);
    json.member("library", refusal.library);
    json.member("why", refusal.why);
    json.member("times", refusal.times);
    json.end_object();
  }
  json.end_array();
  json.key("choices");
  json.begin_array();
  for (const LibraryNotes::Choice& choice : notes->choices) {
    json.begin_object(Layout::line);
    json.member("library", choice.library);
    json.member("what", choice.what);
    json.member("algorithm", choice.algorithm);
    json.member("seconds", choice.seconds);
    json.end_object();
  }
  json.end_array();
  json.end_object();
}

void write_profile(JsonWriter& json, const std::optional<Profile>& profile) {
  json.key("profile");
  if (!profile) return json.value(nullptr);
  json.begin_object();
  json.member("step_seconds", profile->step_seconds);
  json.member("peak_flops", profile->peak_flops);
  json.member("bytes_per_second", profile->bytes_per_second);
  json.key("rows");
  json.begin_array();
  for (const ProfileRow& row : profile->rows) {
    json.begin_object(Layout::line);
    json.member("op", row.op);
    json.member("phase", row.phase);
    json.member("kernel", row.kernel);
    json.member("calls", row.calls);
    json.member("seconds", row.seconds);
    json.member("bytes", row.bytes);
    json.member("flops", row.flops);
    json.member("roofline", row.roofline);
    json.end_object();
  }
  json.end_array();
  json.end_object();
}

void write_ledger(JsonWriter& json, const RankLedger& seen) {
  json.begin_object();
  json.key("steps");
  json.begin_array(Layout::line);
  for (const std::int64_t step : seen.steps) json.value(step);
  json.end_array();
  json.member("skipped", seen.skipped);
  json.key("timeline");
  json.begin_array();
  for (const OpBoundary& op : seen.ledger.ops) {
    json.begin_object(Layout::line);
    json.member("op", op.op);
    json.member("phase", op.phase);
    json.member("allocated_bytes", op.allocated);
    json.member("high_water_bytes", op.high_water);
    json.end_object();
  }
  json.end_array();
  json.key("tensors");
  json.begin_array();
  const auto end = static_cast<std::int64_t>(seen.ledger.ops.size());
  for (const TensorSpan& tensor : seen.ledger.tensors) {
    json.begin_object(Layout::line);
    json.member("name", tensor.name);
    json.member("category", tensor.category);
    json.member("bytes", tensor.bytes);
    json.member("born_op", tensor.born);
    json.member("dies_op", std::min(tensor.died, end));
    json.end_object();
  }
  json.end_array();
  json.end_object();
}

void write_steps(JsonWriter& json, const std::vector<MeasuredStep>& steps) {
  json.key("steps");
  json.begin_array();
  for (const MeasuredStep& step : steps) {
    json.begin_object(Layout::line);
    json.member("step", step.step);
    json.member("loss", step.loss);
    json.member("grad_norm", step.grad_norm);
    json.member("seconds", step.seconds);
    json.member("tokens_per_second", step.tokens_per_second);
    json.member("mfu", step.mfu);
    json.member("skipped", step.skipped);
    json.end_object();
  }
  json.end_array();
}

// The first step warms caches and is not timed where there are others.
std::vector<double> timed(const std::vector<MeasuredStep>& steps) {
  std::vector<double> seconds;
  for (std::size_t i = steps.size() > 1 ? 1 : 0; i < steps.size(); ++i)
    if (steps[i].seconds) seconds.push_back(*steps[i].seconds);
  return seconds;
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

// What a rate that is published must be taken from.
void write_loop(JsonWriter& json, const Measurement& m, const std::optional<double>& flops) {
  json.key("loop");
  if (!m.loop || m.loop->steps < 1 || m.loop->seconds <= 0) return json.value(nullptr);
  const double step = m.loop->seconds / static_cast<double>(m.loop->steps);
  json.begin_object(Layout::line);
  json.member("steps", m.loop->steps);
  json.member("seconds", m.loop->seconds);
  json.member("tokens_per_second",
              m.tokens_per_step ? std::optional(*m.tokens_per_step / step) : std::nullopt);
  json.member("mfu", utilization(m, flops, step));
  json.end_object();
}

void write_time(JsonWriter& json, const Measurement& m) {
  const std::vector<double> seconds = timed(m.steps);
  json.key("time");
  if (seconds.empty()) return json.value(nullptr);
  const double middle = median(seconds);
  std::vector<double> deviations;
  for (const double s : seconds) deviations.push_back(std::abs(s - middle));
  const auto per_second = [&](const std::optional<double>& work) {
    return work && middle > 0 ? std::optional(*work / middle) : std::nullopt;
  };
  json.begin_object();
  json.member("step_seconds", middle);
  json.member("mad_seconds", median(deviations));
  json.member("timed_steps", seconds.size());
  json.member("peak_flops", m.peak_flops);
  json.member("communication", m.world > 1 ? "real" : "none");
  json.member("tokens_per_second", per_second(m.tokens_per_step));
  const auto of_flops = [&](auto count) {
    return m.flops ? std::optional<double>(count(*m.flops)) : std::nullopt;
  };
  using models::StepFlops;
  const auto model = of_flops([](const StepFlops& f) { return f.model; });
  const auto full = of_flops([](const StepFlops& f) { return f.model_full_attention(); });
  json.member("model_flops_per_step", model);
  json.member("hardware_flops_per_step", m.hardware_flops);
  json.member("mfu", utilization(m, model, middle));
  json.member("mfu_full_attention", utilization(m, full, middle));
  json.member("hfu", utilization(m, m.hardware_flops, middle));
  write_loop(json, m, model);
  json.end_object();
}
}  // namespace

std::optional<double> utilization(const Measurement& m, std::optional<double> flops,
                                  std::optional<double> seconds) {
  if (!flops || !m.peak_flops || !seconds || *seconds <= 0) return std::nullopt;
  return *flops / *seconds / *m.peak_flops / static_cast<double>(m.world);
}

void write_measured_rank(JsonWriter& json, const MeasuredRank& rank) {
  json.begin_object();
  json.member("rank", rank.rank);
  json.member("peak_bytes", rank.peak);
  json.member("resident_bytes", rank.resident);
  json.member("reserved_bytes", rank.reserved);
  json.member("initial_reserved_bytes", rank.initial_reserved);
  json.member("device_bytes", rank.device);
  json.key("states");
  if (rank.states)
    write_states(json, *rank.states);
  else
    json.value(nullptr);
  json.key("at_peak");
  if (rank.at_peak)
    write_by_category(json, *rank.at_peak);
  else
    json.value(nullptr);
  json.key("peak");
  if (rank.peak_where.empty()) {
    json.value(nullptr);
  } else {
    json.begin_object(Layout::line);
    json.member("phase", rank.peak_phase);
    json.member("where", rank.peak_where);
    json.member("requested_peak_bytes", rank.peak);
    json.end_object();
  }
  json.key("driver");
  json.begin_array();
  for (const DriverReading& reading : rank.driver) {
    json.begin_object(Layout::line);
    json.member("after", reading.after);
    json.member("used_bytes", reading.used);
    json.member("reserved_bytes", reading.reserved);
    json.end_object();
  }
  json.end_array();
  json.key("ledgers");
  json.begin_array();
  for (const RankLedger& seen : rank.ledgers) write_ledger(json, seen);
  json.end_array();
  json.end_object();
}

void write_measurement(JsonWriter& json, const Measurement& m, const Tool& tool,
                       const Comparison* comparison) {
  json.begin_object();
  json.member("schema", "plimsoll.measurement/1");
  json.key("tool");
  json.begin_object(Layout::line);
  json.member("name", "plimsoll-run");
  json.member("version", tool.version);
  json.member("commit", tool.commit);
  json.end_object();
  json.member("kind", m.kind);
  json.member("measured_at", m.measured_at);
  json.key("workload");
  json.raw(m.workload);
  write_environment(json, m.environment);
  json.member("outcome", m.outcome);
  write_error(json, m.error);
  json.key("ranks");
  json.begin_array();
  for (const MeasuredRank& rank : m.ranks) write_measured_rank(json, rank);
  json.end_array();
  write_steps(json, m.steps);
  write_time(json, m);
  write_clocks(json, m.clocks);
  write_libraries(json, m.libraries);
  write_profile(json, m.profile);
  json.key("comparison");
  if (comparison == nullptr) {
    json.value(nullptr);
  } else {
    json.begin_object();
    write_comparison_members(json, *comparison);
    json.end_object();
  }
  json.end_object();
}

}  // namespace plimsoll::reports
