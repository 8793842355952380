// A plan against itself.
#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "models/base/quantity.h"
#include "reports/checked_document.h"
#include "reports/document_check.h"

namespace plimsoll::reports {

namespace {
using nlohmann::json;

std::string at(std::string_view list, std::size_t index, std::string_view field) {
  return fmt::format("{}[{}].{}", list, index, field);
}

void check_capacity(const CheckedDocument& document) {
  const json& plan = document.root();
  const json& cluster = plan["environment"]["cluster"];
  document.expect("environment.cluster.gpus", cluster["gpus"],
                  plan["workload"]["strategy"]["world_size"], "the workload's world_size");
  const json& gpu = plan["environment"]["gpu"];
  const json& given = cluster["gpu_memory_bytes"];
  const json capacity = !given.is_null() ? given
                        : gpu.is_null()  ? json()
                                         : gpu["cuda_total"]["bytes"];
  if (!capacity.is_null())
    document.expect("capacity_bytes", plan["capacity_bytes"], capacity,
                    "gpu_memory_bytes of the cluster, else cuda_total of the GPU");
  if (plan["capacity_bytes"].is_null()) {
    document.expect("usable_bytes", plan["usable_bytes"], json(), "no capacity is known");
    document.expect("headroom_bytes", plan["headroom_bytes"], json(), "no capacity is known");
    return;
  }
  const std::int64_t usable = whole(plan["capacity_bytes"]) - whole(cluster["reserve_bytes"]);
  document.expect("usable_bytes", plan["usable_bytes"], usable,
                  "capacity_bytes less reserve_bytes");
  if (!plan["device_bytes"].is_null())
    document.expect("headroom_bytes", plan["headroom_bytes"], usable - whole(plan["device_bytes"]),
                    "usable_bytes less device_bytes");
}

// Whether the model can be loaded at all.
bool check_load(const CheckedDocument& document) {
  const json& plan = document.root();
  if (!plan.contains("load")) return true;
  const json& load = plan["load"];
  document.expect("load.device_bytes", load["device_bytes"],
                  checked_add(whole(load["needed_bytes"]),
                              whole(plan["device_bytes"]) - whole(plan["reserved_bytes"])),
                  "its needed_bytes and what is outside the allocator");
  document.expect("load.decides", load["decides"], load["device_bytes"] > plan["device_bytes"],
                  "its device_bytes against those of the step");
  const bool fits = load["device_bytes"] <= plan["usable_bytes"];
  document.expect("load.fits", load["fits"], fits, "its device_bytes against usable_bytes");
  return fits;
}

void check_verdict(const CheckedDocument& document) {
  const json& plan = document.root();
  const json& range = plan["range"];
  const json& high = plan["high_end"];
  const json& usable = plan["usable_bytes"];
  if (!range.is_null())
    document.expect_at_most("range.low_bytes", range["low_bytes"], range["high_bytes"],
                            "range.high_bytes");
  if (!high.is_null()) {
    document.expect(
        "high_end.device_bytes", high["device_bytes"],
        checked_add(whole(high["reserved_bytes"]), whole(high["outside_allocator_bytes"])),
        "reserved_bytes and outside_allocator_bytes together");
    if (!usable.is_null())
      document.expect("high_end.fits", high["fits"], high["device_bytes"] <= usable,
                      "device_bytes against usable_bytes");
  }
  if (usable.is_null() || plan["device_bytes"].is_null()) return;
  const bool loads = check_load(document);
  const bool fits =
      loads && (range.is_null() ? plan["device_bytes"] : range["high_bytes"]) <= usable;
  document.expect("fits", plan["fits"], fits,
                  range.is_null() ? "device_bytes against usable_bytes"
                                  : "range.high_bytes against usable_bytes");
  const json& flushing = plan["flushing"];
  if (!flushing.is_null()) {
    document.expect("flushing.device_bytes", flushing["device_bytes"],
                    checked_add(whole(flushing["reserved_bytes"]),
                                whole(plan["device_bytes"]) - whole(plan["reserved_bytes"])),
                    "its reserved_bytes and what is outside the allocator");
    document.expect_at_most("flushing.device_bytes", flushing["device_bytes"], usable,
                            "usable_bytes");
  }
  const bool borderline =
      !fits && loads && (!flushing.is_null() || (!range.is_null() && range["low_bytes"] <= usable));
  document.expect("verdict", plan["verdict"],
                  fits         ? "fits"
                  : borderline ? "borderline"
                               : "does not fit",
                  "fits, the range and flushing");
}

void check_at_peak(const CheckedDocument& document, const json& of, const std::string& where) {
  document.expect(where + "peak_bytes", of["peak_bytes"], sum_of_members(of["at_peak"]),
                  "the categories of at_peak together");
}

// Ranks of one kind, as pairs of first and last: those of its spans, or else as many as it counts
// from its first one on.
std::vector<std::pair<std::int64_t, std::int64_t>> spans_of(const json& kind) {
  std::vector<std::pair<std::int64_t, std::int64_t>> spans;
  if (kind.contains("spans"))
    for (const json& span : kind["spans"])
      spans.emplace_back(whole(span["first"]), whole(span["last"]));
  const std::int64_t rank = whole(kind["rank"]);
  if (spans.empty()) spans.emplace_back(rank, checked_add(rank, whole(kind["count"])) - 1);
  return spans;
}

void check_ranks(const CheckedDocument& document) {
  const json& plan = document.root();
  const json& ranks = plan["ranks"];
  const json *highest = nullptr, *peak = nullptr;
  std::vector<std::pair<std::int64_t, std::int64_t>> all;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const json& kind = ranks[i];
    check_at_peak(document, kind, fmt::format("ranks[{}].", i));
    const auto spans = spans_of(kind);
    std::int64_t count = 0;
    for (const auto& [begin, end] : spans) count = checked_add(count, end - begin + 1);
    const std::int64_t rank = whole(kind["rank"]);
    const bool within = std::ranges::any_of(
        spans, [&](const auto& span) { return span.first <= rank && rank <= span.second; });
    document.expect(at("ranks", i, "rank"), rank, within ? rank : spans.front().first,
                    "one of its spans");
    document.expect(at("ranks", i, "count"), kind["count"], count, "its spans together");
    all.insert(all.end(), spans.begin(), spans.end());
    if (highest == nullptr || kind["peak_bytes"] > (*highest)["peak_bytes"]) highest = &kind;
    if (kind["rank"] == plan["peak"]["rank"]) peak = &kind;
  }
  std::ranges::sort(all);
  std::int64_t first = 0;
  for (const auto& [begin, end] : all) {
    document.expect("a rank", begin, first, "the ranks before: each is of one kind");
    first = checked_add(end, 1);
  }
  document.expect("the sum of ranks[].count", first, plan["workload"]["strategy"]["world_size"],
                  "the workload's world_size");
  document.expect("peak_bytes", plan["peak_bytes"], (*highest)["peak_bytes"],
                  "the highest of ranks[].peak_bytes");
  document.expect("peak.rank", plan["peak"]["rank"],
                  peak == nullptr ? (*highest)["rank"] : plan["peak"]["rank"],
                  "one of ranks[].rank");
  std::int64_t most = -1;
  for (const json& kind : ranks)
    if (kind.contains("reserved_bytes")) most = std::max(most, whole(kind["reserved_bytes"]));
  if (most >= 0)
    document.expect("reserved_bytes", plan["reserved_bytes"], most,
                    "the highest of ranks[].reserved_bytes");
  document.expect("at_peak", plan["at_peak"], (*peak)["at_peak"], "that of ranks[]");
  document.expect("states", plan["states"], (*peak)["states"], "those of ranks[]");
}

void check_time(const CheckedDocument& document) {
  const json& plan = document.root();
  const json& time = plan["time"];
  const auto known = [](const json& value) { return !value.is_null(); };
  if (!known(time["step_seconds"])) return;
  const double step = time["step_seconds"];
  double parts = 0;
  for (const char* part : {"compute_seconds", "exposed_communication_seconds",
                           "pipeline_bubble_seconds", "optimizer_seconds"}) {
    if (known(time[part])) parts += time[part].get<double>();
  }
  if (!plan["flushing"].is_null() && known(plan["flushing"]["seconds_per_step"]))
    parts += plan["flushing"]["seconds_per_step"].get<double>();
  document.expect_near("time.step_seconds", time["step_seconds"], parts, "its parts together");
  const json& batch = plan["workload"]["batch"];
  const double gpus = plan["environment"]["cluster"]["gpus"];
  const double row = batch.contains("row_tokens")
                         ? batch["row_tokens"].get<double>()
                         : batch["seq_len"].get<double>() * batch["micro_batch"].get<double>();
  // Ranks that tensor parallelism divides a layer among see the same rows.
  const double data = gpus / plan["workload"]["strategy"]["tp"].get<double>();
  const double tokens = row * batch["grad_accum"].get<double>() * data;
  if (known(time["tokens_per_second"]))
    document.expect_near("time.tokens_per_second", time["tokens_per_second"], tokens / step,
                         "the tokens of a step over step_seconds");
  if (known(time["tokens_per_second_per_gpu"]))
    document.expect_near("time.tokens_per_second_per_gpu", time["tokens_per_second_per_gpu"],
                         tokens / step / gpus, "tokens_per_second over the GPUs");
  for (const auto& [share, flops] :
       {std::pair("mfu", "model_flops_per_step"), std::pair("hfu", "hardware_flops_per_step")})
    if (known(time[share]) && known(time["peak_flops"]) && known(plan["flops"][flops]))
      document.expect_near(
          std::string("time.") + share, time[share],
          plan["flops"][flops].get<double>() / step / time["peak_flops"].get<double>() / gpus,
          std::string(flops) + " over step_seconds, peak_flops and GPUs");
}

// --- the step of a plan in full detail

bool is_detailed(const json& plan) {
  const auto has_ops = [](const json& tensor) {
    return tensor.contains("born_op") && tensor.contains("dies_op");
  };
  return !plan["tensors"].empty() && std::ranges::all_of(plan["tensors"], has_ops);
}

// Every tensor at the peak, by category. Of a line that stands for several tensors one at least is
// there. Ops of other stacks than our own may have memory that is no tensor's.
void check_tensors_at_peak(const CheckedDocument& document) {
  const json& plan = document.root();
  const json& at_peak = plan["at_peak"];
  const bool has_scratch = plan["workload"]["stack"]["name"] != "plimsoll";
  json least = at_peak;
  for (auto& bytes : least) bytes = 0;
  json most = least;
  for (const json& tensor : plan["tensors"]) {
    const std::string key = tensor["category"].get<std::string>() + "_bytes";
    if (!tensor["at_peak"].get<bool>() || !least.contains(key)) continue;
    const std::int64_t bytes = whole(tensor["bytes"]);
    least[key] = checked_add(whole(least[key]), bytes);
    most[key] = checked_add(whole(most[key]), checked_multiply(bytes, whole(tensor["repeat"])));
  }
  for (const auto& [key, bytes] : at_peak.items()) {
    const std::string field = "the sum of tensors[] at the peak, " + key + ",";
    if (least[key] == most[key] && !has_scratch)
      document.expect(field, least[key], bytes, "at_peak." + key);
    document.expect_at_most(field, least[key], bytes, "at_peak." + key);
    if (!has_scratch)
      document.expect_at_most("at_peak." + key, bytes, most[key],
                              "the tensors[] that live at the peak together");
  }
}

// Our own runtime's plans claim every byte of every op.
void check_ops(const CheckedDocument& document) {
  const json& plan = document.root();
  const json& ops = plan["timeline"];
  if (plan["workload"]["stack"]["name"] != "plimsoll" || !is_detailed(plan)) return;
  const auto count = static_cast<std::int64_t>(ops.size());
  std::vector<std::int64_t> born(ops.size() + 1), died(ops.size() + 1);
  std::int64_t live = 0;
  for (const json& tensor : plan["tensors"]) {
    const std::int64_t from = whole(tensor["born_op"]), to = whole(tensor["dies_op"]);
    if (from < -1 || from >= count || to < from || to > count) return;  // the reader says so
    std::int64_t& sum = from < 0 ? live : born[static_cast<std::size_t>(from)];
    sum = checked_add(sum, whole(tensor["bytes"]));
    std::int64_t& less = died[static_cast<std::size_t>(std::max<std::int64_t>(to, 0))];
    less = checked_add(less, whole(tensor["bytes"]));
  }
  document.expect("resident_bytes", plan["resident_bytes"], live,
                  "the tensors that are there before the step");
  std::int64_t highest = live;
  for (std::size_t i = 0; i < ops.size(); ++i) {
    live = checked_add(live, born[i]);
    highest = std::max(highest, live);
    document.expect(at("timeline", i, "high_water_bytes"), ops[i]["high_water_bytes"], live,
                    "the tensors that live during the op");
    document.expect("the sum of " + at("timeline", i, "by_category"),
                    sum_of_members(ops[i]["by_category"]), live, "high_water_bytes");
    live -= died[i];
    document.expect(at("timeline", i, "allocated_bytes"), ops[i]["allocated_bytes"], live,
                    "the tensors that live after the op");
  }
  document.expect("peak_bytes", plan["peak_bytes"], highest, "the highest of timeline[]");
}

void check_savings(const CheckedDocument& document) {
  const json& plan = document.root();
  if (!plan.contains("savings")) return;
  const json& savings = plan["savings"];
  for (std::size_t i = 0; i < savings.size(); ++i) {
    const json& saving = savings[i];
    for (const std::string part : {"peak_bytes", "device_bytes"}) {
      if (saving[part].is_null()) continue;
      const std::int64_t more = whole(saving[part]) - whole(plan[part]);
      document.expect(at("savings", i, "saves_" + part), saving["saves_" + part],
                      saving["used"].get<bool>() ? more : -more,
                      "its " + part + " against the plan's");
    }
  }
}

// All but the step: apart, because a comparison says better which tensor was altered.
void check_figures(const CheckedDocument& document, const std::string& source) {
  const json& plan = document.root();
  document.expect("model.name", plan["model"]["name"], plan["workload"]["model"]["name"],
                  "workload.model.name");
  check_capacity(document);
  if (plan["peak_bytes"].is_null()) return;  // model states alone
  for (const char* part :
       {"device_bytes", "resident_bytes", "reserved_bytes", "peak", "at_peak", "outside_allocator"})
    check(!plan[part].is_null(), ErrorKind::bad_input,
          [&] { return fmt::format("{}: {} is null beside peak_bytes", source, part); });
  check(!plan["ranks"].empty(), ErrorKind::bad_input,
        [&] { return source + ": ranks is a list of 0, but peak_bytes is a rank's"; });
  document.expect(
      "device_bytes", plan["device_bytes"],
      checked_add(whole(plan["reserved_bytes"]), sum_of_members(plan["outside_allocator"])),
      "reserved_bytes and outside_allocator together");
  const json& calibration = plan["calibration"];
  if (!calibration.is_null())
    for (const char* part : {"context_bytes", "libraries_bytes"})
      document.expect(fmt::format("calibration.{}", part), calibration[part],
                      plan["outside_allocator"][part], "outside_allocator");
  check_at_peak(document, plan, "");
  document.expect_at_most("resident_bytes", plan["resident_bytes"], plan["peak_bytes"],
                          "peak_bytes");
  document.expect_at_most("peak_bytes", plan["peak_bytes"], plan["reserved_bytes"],
                          "reserved_bytes");
  check_verdict(document);
  check_ranks(document);
  check_time(document);
  check_savings(document);
}

void check_step(const CheckedDocument& document, const std::string& source) {
  const json& plan = document.root();
  check(plan["timeline"].empty() == plan["tensors"].empty(), ErrorKind::bad_input, [&] {
    return fmt::format("{}: timeline is a list of {}, and tensors of {}", source,
                       plan["timeline"].size(), plan["tensors"].size());
  });
  if (plan["peak_bytes"].is_null() || plan["tensors"].empty()) return;
  check_ops(document);
  check_tensors_at_peak(document);
}
}  // namespace

std::string check_plan(std::string_view text, const std::string& source) {
  const CheckedDocument document(text, source, "plan");
  if (document.is_question()) return "";
  name_source(source, [&] { check_figures(document, source); });
  try {
    name_source(source, [&] { check_step(document, source); });
  } catch (const Error& error) {
    return error.message();
  }
  return "";
}

}  // namespace plimsoll::reports
