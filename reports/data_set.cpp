#include "reports/data_set.h"

#include <fmt/format.h>

#include "models/run_names.h"
#include "reports/text.h"
#include "reports/workload_json.h"

namespace plimsoll::reports {

using models::Rows;

namespace {
std::string shape(const models::DrawnBatch& drawn) {
  const models::Batch& b = drawn.batch;
  if (drawn.rows == Rows::flattened)
    return fmt::format("one row of {} tokens", grouped(Count(b.tokens())));
  return fmt::format("{} x {}", b.micro_batch, grouped(Count(b.seq_len)));
}

std::string whole(double value) {
  return grouped(Count(static_cast<std::int64_t>(value + 0.5)));
}

// "1 step in 250", "every step".
std::string often(double chance) {
  if (chance > 0.5)
    return chance > 0.995 ? "every step" : fmt::format("{:.0f} % of steps", 100 * chance);
  if (chance < 1e-12) return "fewer steps than 1 in 1e12";
  const double steps = 1 / chance;
  return steps < 1e6 ? fmt::format("1 step in {}", whole(steps))
                     : fmt::format("1 step in {:.1e}", steps);
}

void write_batch_of(JsonWriter& json, const char* key, const models::DrawnBatch& drawn, Bytes peak,
                    Bytes device) {
  json.key(key);
  json.begin_object(JsonWriter::Layout::line);
  json.member("rows", name_of(drawn.rows));
  json.key("batch");
  write_batch(json, drawn.batch);
  json.member("peak_bytes", peak);
  json.member("device_bytes", device);
  json.end_object();
}
}  // namespace

std::string rows_text(const Plan& plan) {
  switch (plan.strategy.rows) {
    case Rows::full:
      break;
    case Rows::padded:
      return "rows hold padding: attention reads a mask";
    case Rows::flattened:
      return fmt::format("padding-free: one row of {} samples, {} tokens", plan.batch.samples(),
                         grouped(Count(plan.batch.tokens())));
  }
  return {};
}

std::vector<std::string> data_lines(const Plan& plan) {
  if (!plan.data) return {};
  const DataSet& set = *plan.data;
  const models::BatchesOfData& of = set.batches;
  std::vector<std::string> lines;
  lines.push_back(fmt::format(
      "Data: {} samples, {} tokens, the longest {}{}; {:.0f} % of positions are no padding",
      grouped(Count(of.samples)), short_count(Count(of.tokens)), grouped(Count(of.longest)),
      of.cut > 0 ? fmt::format(" ({} cut)", grouped(Count(of.cut))) : "", 100 * of.real_share));
  lines.push_back(
      fmt::format("  planned is the worst batch, {}: {}, the first expected at step {}",
                  shape(of.worst), often(of.worst_per_step),
                  of.first_worst_step < 1e15
                      ? whole(of.first_worst_step) + " (" + whole(of.steps_per_epoch) + " an epoch)"
                      : "beyond any run"));
  std::string median = fmt::format("  the median batch, {}: peak {}, device {}", shape(of.median),
                                   bytes_text(set.median_peak), bytes_text(set.median_device));
  if (set.real_tokens_per_second)
    median += fmt::format("; {} tokens/s without padding", whole(*set.real_tokens_per_second));
  lines.push_back(std::move(median));
  return lines;
}

void write_data(JsonWriter& json, const Plan& plan) {
  if (!plan.data) return;
  const DataSet& set = *plan.data;
  const models::BatchesOfData& of = set.batches;
  json.key("data");
  json.begin_object();
  json.member("samples", of.samples);
  json.member("cut_samples", of.cut);
  json.member("rows", of.items);
  json.member("tokens", of.tokens);
  json.member("longest_tokens", of.longest);
  json.member("steps_per_epoch", of.steps_per_epoch);
  json.member("worst_batch_per_step", of.worst_per_step);
  json.member("first_worst_step", of.first_worst_step);
  json.member("real_share", of.real_share);
  json.member("real_tokens_per_step", of.real_tokens_per_step);
  json.member("real_tokens_per_second", set.real_tokens_per_second);
  write_batch_of(json, "worst", of.worst, plan.peak, plan.device);
  write_batch_of(json, "median", of.median, set.median_peak, set.median_device);
  json.end_object();
}

}  // namespace plimsoll::reports
