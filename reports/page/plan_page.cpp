#include <fmt/format.h>

#include <algorithm>

#include "models/recompute.h"
#include "models/run_names.h"
#include "models/workload_reader.h"
#include "reports/adapters_text.h"
#include "reports/page/sections.h"
#include "reports/recommendation.h"
#include "reports/strategy_text.h"
#include "reports/text.h"

namespace plimsoll::reports {

namespace {

constexpr std::size_t kMostTensors = 20;

std::string category_name(std::size_t i) {
  return models::name_of(static_cast<models::Category>(i));
}

Cell category_cell(std::size_t i) {
  return {fmt::format("<span class=\"key\" style=\"background:{}\"></span>{}",
                      colour_of(static_cast<models::Category>(i)), category_name(i))};
}

std::vector<BarPart> bar_parts(const ByCategory& parts) {
  std::vector<BarPart> out;
  for (std::size_t i = 0; i < parts.size(); ++i)
    if (parts[i] > Bytes(0))
      out.push_back({parts[i].real(), colour_of(static_cast<models::Category>(i)),
                     category_name(i) + " " + bytes_text(parts[i])});
  return out;
}

void subject(const Json& plan, Html& html) {
  const Json& model = plan.at("model");
  std::string line = text(model, "architecture");
  line += (line.empty() ? "" : ", ") + whole_number(number_of(model, "parameters")) + " parameters";
  if (number(model, "trainable_parameters") != number(model, "parameters"))
    line += ", " + whole_number(number_of(model, "trainable_parameters")) + " trainable";
  html.paragraph(line);
  const models::Workload workload = models::read_workload(plan.dump(), "the plan");
  const models::Strategy& s = workload.strategy;
  const models::Batch& batch = workload.batch;
  const Json& gpu = plan.at("environment").at("gpu");
  html.paragraph(fmt::format("{} × {} · {} · {} · {}", s.gpus,
                             gpu.is_null() ? "unnamed device" : text(gpu, "title"),
                             strategy_text(plan), name_of(s.precision), name_of(s.optimizer)));
  html.paragraph(
      fmt::format("sequence {} · micro-batch {} · accumulation {} · recompute {} · {} attention · "
                  "{} loss",
                  batch.seq_len, batch.micro_batch, batch.grad_accum, models::text_of(s.recompute),
                  name_of(s.attention), name_of(s.loss)));
  std::string others;
  for (const std::string& one : strategy_lines(s)) others += (others.empty() ? "" : " · ") + one;
  if (!others.empty()) html.paragraph(others);
}

Timeline timeline_of(const Json& plan) {
  Timeline out;
  out.model = text(plan.at("model"), "name");
  out.points = timeline_points(plan.at("timeline"));
  const Json& place = plan.at("peak");
  out.peak_place = {place.at("rank").get<std::int64_t>(), text(place, "phase"),
                    text(place, "where")};
  out.peak = bytes(plan, "peak_bytes").value_or(Bytes(0));
  out.at_peak = by_category(plan.at("at_peak"));
  const Json& outside = plan.at("outside_allocator");
  if (const auto usable = bytes(plan, "usable_bytes"))
    out.room = *usable - bytes_of(outside, "context_bytes") - bytes_of(outside, "libraries_bytes") -
               bytes_of(outside, "nccl_bytes");
  return out;
}

void device(const Json& plan, Html& html) {
  Table table("On each device", {text_cell(""), number_cell("bytes"), text_cell("what it is")});
  const auto row = [&](const char* name, std::optional<Bytes> value, const char* what,
                       bool total = false) {
    if (value && (*value > Bytes(0) || total))
      table.row({text_cell(name), bytes_cell(*value), text_cell(what)}, total);
  };
  const Json& outside = plan.at("outside_allocator");
  row("peak", bytes(plan, "peak_bytes"), "allocated at once (max_memory_allocated)");
  row("between steps", bytes(plan, "resident_bytes"), "stays allocated");
  row("reserved", bytes(plan, "reserved_bytes"), "by the allocator, with its rounding and gaps");
  row("context", bytes(outside, "context_bytes"), "the driver's, and loaded kernels");
  row("libraries", bytes(outside, "libraries_bytes"), "outside the allocator");
  row("NCCL", bytes(outside, "nccl_bytes"), "communicators' buffers");
  row("device", bytes(plan, "device_bytes"), "reserved and all outside it, as nvidia-smi counts",
      true);
  if (plan.contains("high_end") && !plan.at("high_end").is_null())
    row("high end", bytes(plan.at("high_end"), "device_bytes"),
        "overheads at their most; 1 unseen run in 100 reserved more");
  row("usable", bytes(plan, "usable_bytes"), "of the card");
  html.raw(table.take());
}

void at_peak(const Json& plan, Html& html) {
  const ByCategory parts = by_category(plan.at("at_peak"));
  const Bytes peak = sum(parts);
  if (peak == Bytes(0)) return;
  Table table("At the peak",
              {text_cell("category"), number_cell("bytes"), number_cell("share"), text_cell("")});
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (parts[i] == Bytes(0)) continue;
    const BarPart part{parts[i].real(), colour_of(static_cast<models::Category>(i)), ""};
    table.row({category_cell(i),
               bytes_cell(parts[i]),
               number_cell(percent(parts[i].real() / peak.real())),
               {bar_html({part}, peak.real())}});
  }
  table.row({text_cell("together"), bytes_cell(peak), number_cell("100.0 %"), text_cell("")}, true);
  html.raw(table.take());
}

void ranks(const Json& plan, int level, Html& html) {
  const Json& kinds = plan.at("ranks");
  if (kinds.size() < 2) return;
  double most = 0;
  for (const Json& kind : kinds) most = std::max(most, number(kind, "peak_bytes").value_or(0));
  html.heading(level, "Ranks");
  Table table("", {text_cell("rank"), number_cell("how many"), number_cell("peak"), text_cell("")});
  for (const Json& kind : kinds)
    table.row({text_cell(whole_number(number_of(kind, "rank"))),
               number_cell(whole_number(number_of(kind, "count"))),
               bytes_cell(bytes_of(kind, "peak_bytes")),
               {bar_html(bar_parts(by_category(kind.at("at_peak"))), std::max(most, 1.0))}});
  html.raw(table.take());
}

// A name breaks between its parts, never inside one.
Cell name_cell(std::string_view name) {
  std::string out = "<span class=\"name\">";
  for (const char c : xml_escaped(name)) {
    out += c;
    if (c == '.' || c == '_') out += "<wbr>";
  }
  return {out + "</span>"};
}

void tensors(const Json& plan, int level, Html& html) {
  std::vector<const Json*> lines;
  for (const Json& line : plan.at("tensors"))
    if (line.value("at_peak", false)) lines.push_back(&line);
  if (lines.empty()) return;
  const auto total = [](const Json* line) {
    return number_of(*line, "bytes") * number(*line, "repeat").value_or(1);
  };
  std::ranges::stable_sort(lines, std::greater<>(), total);
  html.heading(level, "The largest tensors at the peak");
  Table table("", {text_cell("tensor"), text_cell("category"), number_cell("bytes each"),
                   number_cell("times"), text_cell("born"), text_cell("dies")});
  for (std::size_t i = 0; i < std::min(kMostTensors, lines.size()); ++i) {
    const Json& line = *lines[i];
    table.row({name_cell(text(line, "name")), name_cell(text(line, "category")),
               bytes_cell(bytes_of(line, "bytes")),
               number_cell(whole_number(number(line, "repeat").value_or(1))),
               name_cell(text(line, "born")), name_cell(text(line, "dies"))});
  }
  html.raw(table.take());
}

void time(const Json& plan, int level, Html& html) {
  const Json& time = plan.at("time");
  const auto step = number(time, "step_seconds");
  if (!step || *step <= 0) return;
  html.heading(level, "Time");
  std::string line = fmt::format("{:.3g} s a step", *step);
  if (const auto rate = number(time, "tokens_per_second"))
    line += ", " + whole_number(*rate) + " tokens/s";
  if (const auto mfu = number(time, "mfu")) line += ", MFU " + percent(*mfu);
  if (const auto hfu = number(time, "hfu")) line += ", HFU " + percent(*hfu);
  html.paragraph(line);
  Table table("", {text_cell("part of the step"), number_cell("seconds"), number_cell("share"),
                   text_cell("")});
  for (const auto& [key, name] :
       {std::pair("compute_seconds", "compute"),
        std::pair("exposed_communication_seconds", "communication not hidden"),
        std::pair("pipeline_bubble_seconds", "pipeline bubble"),
        std::pair("optimizer_seconds", "optimizer")})
    if (const auto seconds = number(time, key); seconds && *seconds > 0)
      table.row({text_cell(name),
                 number_cell(fmt::format("{:.3g}", *seconds)),
                 number_cell(percent(*seconds / *step)),
                 {bar_html({{*seconds, "var(--bar)", ""}}, *step)}});
  html.raw(table.take());
}

void assumptions(const Json& plan, int level, Html& html) {
  html.heading(level, "Assumptions");
  Table table("", {text_cell("what"), text_cell("value"), text_cell("basis"), text_cell("source")});
  for (const Json& line : plan.at("assumptions")) {
    const Json& value = line.at("value");
    const bool is_bytes = value.is_number_integer() && text(line, "what").ends_with("bytes");
    table.row({text_cell(text(line, "what")),
               is_bytes ? bytes_cell(Bytes(value.get<std::int64_t>()))
                        : text_cell(value.is_string() ? value.get<std::string>() : value.dump()),
               text_cell(text(line, "basis")), text_cell(text(line, "source"))});
  }
  html.raw(
      "<details><summary>Derived, calibrated and assumed figures, with their sources"
      "</summary>\n" +
      table.take() + "</details>\n");
}

}  // namespace

std::string strategy_text(const Json& plan) {
  const models::Workload workload = models::read_workload(plan.dump(), "the plan");
  const models::Strategy& s = workload.strategy;
  std::string out = fmt::format("{} {}", name_of(s.stack), data_parallel_text(s));
  if (s.lora) out += ", " + adapters_kind(*s.lora);
  return out;
}

void verdict_line(const Json& plan, Html& html) {
  const std::string verdict = text(plan, "verdict");
  const auto device = bytes(plan, "device_bytes"), usable = bytes(plan, "usable_bytes");
  const Json& high = plan.at("high_end");
  const bool barely = verdict == "fits" && high.is_object() && !high.value("fits", true);
  std::string line = verdict.empty() ? "Not known" : verdict;
  line.front() = static_cast<char>(std::toupper(static_cast<unsigned char>(line.front())));
  if (barely) line += ", barely";
  if (device && usable)
    line += fmt::format(": {} needed on each device, {} usable", bytes_text(*device),
                        bytes_text(*usable));
  if (barely)
    line += fmt::format("; {} at the high end", bytes_text(bytes_of(high, "device_bytes")));
  html.paragraph(line, verdict == "borderline" || barely ? "verdict borderline"
                       : verdict == "fits"               ? "verdict fits"
                                                         : "verdict not");
}

void plan_sections(const Json& plan, int level, Html& html) {
  subject(plan, html);
  if (!plan.at("timeline").empty()) {
    html.heading(level, "Memory over one step");
    timeline_figure(timeline_of(plan), html);
    if (const std::size_t all = plan.at("timeline").size(); all > kMostPoints)
      html.paragraph(fmt::format("{} operations; of neighbours the highest is shown.",
                                 whole_number(static_cast<double>(all))),
                     "faint");
  }
  html.heading(level, "Where it goes");
  at_peak(plan, html);
  device(plan, html);
  savings(plan, level, html);
  remedies(plan, level, html);
  ranks(plan, level, html);
  tensors(plan, level, html);
  time(plan, level, html);
  if (const auto advice = plan.find("advice"); advice != plan.end() && !advice->empty()) {
    html.heading(level, "Notes");
    html.list(advice->get<std::vector<std::string>>());
  }
  assumptions(plan, level, html);
}

void plan_page(const Json& plan, Html& html) {
  html.heading(1, text(plan.at("model"), "name"));
  verdict_line(plan, html);
  if (const auto command = plan.find("command"); command != plan.end())
    html.code(command->get<std::string>());
  plan_sections(plan, 2, html);
}

}  // namespace plimsoll::reports
