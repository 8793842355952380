#include "reports/plan_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "models/decisions/layer.h"
#include "models/decisions/mesh.h"
#include "models/recompute.h"
#include "models/run_names.h"
#include "models/storages.h"
#include "reports/data_set.h"
#include "reports/load_table.h"
#include "reports/recommendation.h"
#include "reports/strategy_text.h"
#include "reports/table_lines.h"

namespace plimsoll::reports {

namespace {

// tests/planner/drawn_runs_test.cpp; our own runtime reserves what is planned.
const char* high_end_meaning(const Plan& plan) {
  return plan.strategy.stack == models::Stack::plimsoll
             ? "with overheads at their high end"
             : "overheads high; 1 run in 100 reserves more still";
}

std::string per_gpu(const Plan& plan) {
  if (plan.strategy.device == models::Device::cpu)
    return plan.strategy.gpus == 1 ? "on this host" : "by each rank";
  if (plan.strategy.data.kind == models::DataParallelKind::dp) return "on the first GPU";
  return plan.strategy.gpus == 1 ? "on one GPU" : "on each GPU";
}

std::string flushing_text(const Flushing& flushing) {
  std::string text = "It would run only because the allocator gives cached memory back";
  if (flushing.flushes == 0) return text + " to the driver before the second step.";
  text += fmt::format(": {} time{} a step, {} allocated anew", flushing.flushes,
                      flushing.flushes == 1 ? "" : "s", bytes_text(flushing.malloced));
  if (flushing.seconds) text += fmt::format(", which takes about {:.2g} s", *flushing.seconds);
  return text + ".";
}

void add_verdict(Lines& lines, const Plan& plan) {
  const Bytes needed = needed_device(plan);
  std::string where = per_gpu(plan);
  if (needed > plan.device)
    where += plan.load->merges ? " while the adapter is merged" : " while it is loaded";
  const std::string usable = plan.usable ? bytes_text(*plan.usable) : "";
  if (plan.states_only) {
    const std::string states = decimal_bytes_text(plan.states.total());
    if (plan.verdict == Verdict::does_not_fit)
      lines.add(fmt::format("DOES NOT FIT: the states alone take {} ({}) {}, {} usable", states,
                            bytes_text(plan.states.total()), where, usable),
                Colour::red);
    else
      lines.add(fmt::format("MODEL STATES: {} ({}) {}, without activations", states,
                            bytes_text(plan.states.total()), where),
                Colour::yellow);
    return;
  }
  const std::string need = bytes_text(needed);
  if (!plan.host_fits) {
    lines.add(fmt::format("DOES NOT FIT: {} needed in the memory of each node, {} there: {} too "
                          "much ({} needed {})",
                          bytes_text(plan.host_node), bytes_text(*plan.host_memory),
                          bytes_text(plan.host_node - *plan.host_memory), need, where),
              Colour::red);
  } else if (!plan.usable) {
    lines.add(fmt::format("NEEDS {} {}", need, where), Colour::yellow);
  } else if (plan.verdict == Verdict::does_not_fit) {
    lines.add(fmt::format("DOES NOT FIT: {} needed {}, {} usable: {} too much", need, where, usable,
                          bytes_text(needed - *plan.usable)),
              Colour::red);
  } else if (plan.verdict == Verdict::borderline && plan.flushing) {
    lines.add(fmt::format("BORDERLINE: {} needed {}, {} usable: {} too much", need, where, usable,
                          bytes_text(needed - *plan.usable)),
              Colour::yellow);
    lines.add(flushing_text(*plan.flushing));
  } else if (plan.verdict == Verdict::borderline) {
    lines.add(fmt::format("BORDERLINE: {} needed {} (up to {}), {} usable", need, where,
                          plan.range ? bytes_text(plan.range->high) : need, usable),
              Colour::yellow);
  } else {
    const bool barely = fits_barely(plan);
    lines.add(
        fmt::format("{}: {} needed {}, {} usable: {} to spare", barely ? "FITS, BARELY" : "FITS",
                    need, where, usable, bytes_text(*plan.usable - needed)),
        barely ? Colour::yellow : Colour::green);
    if (barely)
      lines.add(fmt::format("It would not at the high end, {}{}. Do not count on it.",
                            bytes_text(plan.high_end->device()),
                            plan.strategy.stack == models::Stack::plimsoll
                                ? ""
                                : ": one block elsewhere changes what the allocator reserves"));
  }
}

void add_subject(Lines& lines, const Plan& plan) {
  const models::Strategy& s = plan.strategy;
  std::string model = plan.model_name.empty() ? "" : plan.model_name + ": ";
  if (!plan.architecture.empty()) model += plan.architecture + ", ";
  model += grouped(plan.parameters) + " parameters";
  if (plan.trainable_parameters != plan.parameters)
    model += ", " + grouped(plan.trainable_parameters) + " trainable";
  if (plan.active_parameters != plan.parameters)
    model += ", " + grouped(plan.active_parameters) + " active";
  lines.add(model);
  std::string machine = plan.gpu ? fmt::format("{} x {}", s.gpus, plan.gpu->title)
                                 : fmt::format("{} x unnamed GPU", s.gpus);
  if (s.device == models::Device::cpu) machine = fmt::format("{} ranks on the host", s.gpus);
  if (plan.model_name.empty()) {  // --params: no stack executes a bare number
    lines.add(fmt::format("{}, ZeRO stage {}, {}", machine, s.data.zero, name_of(s.precision)));
    return;
  }
  lines.add(fmt::format("{}, {}, {}, {}, {}", machine, name_of(s.stack), data_parallel_text(s),
                        name_of(s.precision), name_of(s.optimizer)));
  lines.add(
      fmt::format("sequence {}, micro-batch {}, accumulation {}, recompute {}, {} attention, "
                  "{} loss",
                  plan.batch.seq_len, plan.batch.micro_batch, plan.batch.grad_accum,
                  models::text_of(s.recompute), name_of(s.attention), name_of(s.loss)));
  if (const std::string rows = rows_text(plan); !rows.empty()) lines.add(rows);
  for (const std::string& line : strategy_lines(s)) lines.add(line);
}

// Where the ranks' peaks differ by something that shows.
void add_other_ranks(Lines& lines, const Plan& plan) {
  if (plan.ranks.size() < 2) return;
  const RankKind& shown = plan.ranks.front();
  Bytes least = shown.peak, most = 0_B;
  for (std::size_t i = 1; i < plan.ranks.size(); ++i) {
    least = std::min(least, plan.ranks[i].peak);
    most = std::max(most, plan.ranks[i].peak);
  }
  const std::string low = bytes_text(least), high = bytes_text(most);
  if (low == bytes_text(shown.peak)) return;
  const std::int64_t others = models::decisions::mesh_of(plan.strategy).ranks() - shown.count;
  const std::string who =
      shown.count == 1 ? fmt::format("rank {}", shown.rank) : fmt::format("{} ranks", shown.count);
  const std::string range = low == high ? low : fmt::format("{} to {}", low, high);
  lines.put(fmt::format("    {}: {}; {} {}: {}", who, bytes_text(shown.peak), others,
                        others == 1 ? "other" : "others", range));
}

void add_categories(Lines& lines, const Plan& plan) {
  lines.heading(fmt::format("At the peak ({}, {}, rank {})", plan.peak_place.phase,
                            plan.peak_place.where, plan.peak_place.rank));
  const std::size_t room =
      lines.terminal().columns - (2 + kNameColumns + 1 + kBytesColumns + 2) - 8;
  for (std::size_t i = 0; i < plan.at_peak.size(); ++i) {
    const Bytes bytes = plan.at_peak[i];
    if (bytes == 0_B) continue;
    const double share = plan.peak > 0_B ? bytes.real() / plan.peak.real() : 0;
    lines.row(models::name_of(static_cast<models::Category>(i)), kNameColumns, bytes,
              fmt::format("{:5.1f} % {}", 100 * share, bar(share, room, lines.terminal())),
              Colour::blue);
  }
  lines.row("peak", kNameColumns, plan.peak, "allocated at once");
  add_other_ranks(lines, plan);
  lines.row("between steps", kNameColumns, plan.resident, "stays allocated");
}

std::string usable_text(const Plan& plan) {
  if (plan.strategy.device != models::Device::cpu) return "the card's capacity";
  return "a rank's share of this host, or as --gpu-memory says";
}

void add_device(Lines& lines, const Plan& plan) {
  const bool host = plan.strategy.device == models::Device::cpu;
  lines.heading(host ? "On the host, each rank" : "On the device");
  lines.row("reserved", kNameColumns, plan.reserved,
            "by the allocator, with its rounding and gaps");
  const auto outside = [&](const char* name, Bytes bytes, const char* what) {
    if (bytes > 0_B) lines.row(name, kNameColumns, bytes, what);
  };
  outside("context", plan.overhead.context, "of the driver and loaded kernels");
  outside("libraries", plan.overhead.libraries, "outside the allocator");
  outside("NCCL", plan.overhead.nccl, "buffers of the communicators");
  lines.row(host ? "together" : "device", kNameColumns, plan.device,
            host ? "of the host's memory" : "as nvidia-smi counts");
  if (plan.high_end)
    lines.row("high end", kNameColumns, plan.high_end->device(),
              !plan.usable || plan.fits == plan.high_end->fits
                  ? high_end_meaning(plan)
                  : "too much, where overheads come out high");
  if (plan.range)
    lines.row("at most", kNameColumns, plan.range->high,
              fmt::format("at least {}; {}", bytes_text(plan.range->low), plan.range->why));
  if (plan.host_pageable > Bytes(0) && !plan.strategy.offload.any())
    lines.row("paged", kNameColumns, plan.host_pageable,
              "in managed memory, on the host if need be");
  if (plan.usable)
    lines.row("usable", kNameColumns, *plan.usable,
              plan.capacity && *plan.capacity != *plan.usable
                  ? fmt::format("of a capacity of {}", bytes_text(*plan.capacity))
                  : usable_text(plan));
}

// What is offloaded.
void add_host(Lines& lines, const Plan& plan) {
  if (!plan.strategy.offload.any()) return;
  lines.heading("In the host's memory");
  if (plan.host_pinned > Bytes(0))
    lines.row("pinned", kNameColumns, plan.host_pinned,
              plan.strategy.stack == models::Stack::plimsoll || plan.strategy.offload.nvme
                  ? "each rank, page-locked"
                  : "each rank, page-locked in powers of two");
  if (plan.host_pageable > Bytes(0))
    lines.row("pageable", kNameColumns, plan.host_pageable, "each rank");
  lines.row("node", kNameColumns, plan.host_node,
            !plan.host_memory
                ? std::string("all its ranks; --host-memory judges it")
                : fmt::format("all its ranks, {} {}", plan.host_fits ? "of" : "more than",
                              bytes_text(*plan.host_memory)));
  if (plan.nvme > Bytes(0)) lines.row("NVMe", kNameColumns, plan.nvme, "each rank, in files");
}

void add_states(Lines& lines, const Plan& plan) {
  lines.heading("Model states");
  const double total = plan.states.total().real();
  const auto state = [&](const char* name, Bytes bytes) {
    const double share = total > 0 ? bytes.real() / total : 0;
    lines.row(name, kNameColumns, bytes,
              fmt::format("{:5.1f} % {} {}", 100 * share, right(decimal_bytes_text(bytes), 9),
                          bar(share, 30, lines.terminal())),
              Colour::blue);
  };
  state("parameters", plan.states.parameters);
  state("gradients", plan.states.gradients);
  state("optimizer", plan.states.optimizer);
  lines.row("together", kNameColumns, plan.states.total(),
            "        " + right(decimal_bytes_text(plan.states.total()), 9));
}

void add_time(Lines& lines, const Plan& plan) {
  const Time& time = plan.time;
  if (!time.step_seconds) return;
  const bool hypothetical = plan.usable && plan.verdict == Verdict::does_not_fit;
  std::string text = fmt::format(
      "{} {:.3g} s", hypothetical ? "Step, if it fitted:" : "Step:", *time.step_seconds);
  if (time.tokens_per_second)
    text += fmt::format(", {} tokens/s",
                        grouped(Count(static_cast<std::int64_t>(*time.tokens_per_second))));
  if (time.mfu) text += fmt::format(", MFU {:.1f} %", 100 * *time.mfu);
  if (time.mfu_full_attention)
    text += fmt::format(" ({:.1f} % with full attention)", 100 * *time.mfu_full_attention);
  lines.blank();
  lines.add(text);
  std::string parts;
  const auto part = [&](const char* name, const std::optional<double>& seconds) {
    if (seconds && *seconds > 0)
      parts += fmt::format("{} {:.1f} %, ", name, 100 * *seconds / *time.step_seconds);
  };
  part("compute", time.compute_seconds);
  part("exposed communication", time.exposed_communication_seconds);
  part("pipeline bubble", time.pipeline_bubble_seconds);
  part("optimizer", time.optimizer_seconds);
  if (plan.flushing) part("memory allocated anew", plan.flushing->seconds);
  if (!time.limited_by.empty()) parts += "limited by " + time.limited_by + ", ";
  if (!parts.empty()) lines.add("  " + parts.substr(0, parts.size() - 2));
}

// "CUDA context: 690 MiB (assumed)" of {"CUDA context, bytes", "723517440"}.
std::string assumption_text(const Assumption& assumption) {
  constexpr std::string_view unit = ", bytes";
  std::string what = assumption.what, value = assumption.value;
  std::int64_t bytes = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), bytes);
  if (what.ends_with(unit) && error == std::errc() && end == value.data() + value.size()) {
    what.resize(what.size() - unit.size());
    value = bytes_text(Bytes(bytes));
  }
  if (value == "null") value = "not known";
  return fmt::format("  {}: {} ({})", what, value, assumption.basis);
}

void add_notes(Lines& lines, const Plan& plan) {
  if (!plan.advice.empty()) lines.blank();
  for (const std::string& advice : plan.advice) lines.add(advice);
  const auto open = std::count_if(plan.assumptions.begin(), plan.assumptions.end(),
                                  [](const Assumption& a) { return a.basis != "derived"; });
  if (open == 0) return;
  lines.heading(fmt::format("Assumed or calibrated ({}; --json has their sources)", open));
  // Those of the time are many and alike: one line counts them.
  constexpr std::string_view time = "time: ";
  int calibrated = 0, assumed = 0;
  for (const Assumption& assumption : plan.assumptions) {
    if (assumption.basis == "derived") continue;
    if (assumption.what.starts_with(time))
      ++(assumption.basis == "calibrated" ? calibrated : assumed);
    else
      lines.put(clipped(printable(assumption_text(assumption)), lines.terminal().columns,
                        lines.terminal()));
  }
  if (calibrated + assumed > 0)
    lines.add(fmt::format("  time: {} rates and shares ({} calibrated, {} assumed)",
                          calibrated + assumed, calibrated, assumed));
}
}  // namespace

std::string remedies_table(const std::vector<Remedy>& remedies, const Terminal& terminal) {
  Lines lines(terminal);
  lines.heading("What would help, cheapest first");
  constexpr std::size_t longest = 32;
  std::size_t columns = 0;
  for (const Remedy& remedy : remedies)
    if (width(remedy.option) <= longest) columns = std::max(columns, width(remedy.option));
  for (const Remedy& remedy : remedies) {
    // A long one has a line of its own: it must be there whole, to be copied.
    const bool own_line = width(remedy.option) > columns;
    if (own_line) lines.add("  " + remedy.option);
    lines.put("  " + padded(own_line ? "" : remedy.option, columns) +
              fmt::format("  saves {:>8}, leaves {:>8}", bytes_text(remedy.saves),
                          bytes_text(remedy.device)) +
              (remedy.fits ? "  " + coloured("fits", Colour::green, terminal) : ""));
    if (!remedy.concession.empty()) lines.add("    (" + remedy.concession + ")");
  }
  return lines.take();
}

std::string data_parallel_text(const models::Strategy& s) {
  if (!models::decisions::mesh_of(s).communicates()) return "one rank";
  if (s.data.kind == models::DataParallelKind::dp) return "torch.nn.DataParallel";
  std::string text = s.data.zero == 0 ? "DDP" : "ZeRO-" + std::to_string(s.data.zero);
  if (s.stack == models::Stack::pytorch) {
    const std::string fsdp = "FSDP" + std::to_string(s.data.fsdp_version);
    const std::array<std::string, 4> names{"DDP", "DDP + ZeroRedundancyOptimizer",
                                           fsdp + " without resharding", fsdp + " full shard"};
    text = names[static_cast<std::size_t>(std::clamp(s.data.zero, 0, 3))];
  }
  if (models::decisions::shards_in_groups(s))
    text += fmt::format(" in groups of {}", s.data.shard_group);
  return text;
}

bool fits_barely(const Plan& plan) {
  return plan.fits && plan.usable && plan.high_end && !plan.high_end->fits;
}

std::string plan_table(const Plan& plan, const Terminal& terminal) {
  Lines lines(terminal);
  add_verdict(lines, plan);
  add_subject(lines, plan);
  if (plan.states_only) {
    add_states(lines, plan);
  } else {
    add_categories(lines, plan);
    add_device(lines, plan);
    if (plan.load) add_load(lines, plan);
    add_host(lines, plan);
    add_time(lines, plan);
    if (plan.data) lines.blank();
    for (const std::string& line : data_lines(plan)) lines.add(line);
  }
  if (!plan.remedies.empty()) lines.append(remedies_table(plan.remedies, terminal));
  add_notes(lines, plan);
  return lines.take();
}

}  // namespace plimsoll::reports
