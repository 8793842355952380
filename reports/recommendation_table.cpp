#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "models/decisions/mesh.h"
#include "models/optimizers.h"
#include "models/recompute.h"
#include "models/run_names.h"
#include "models/storages.h"
#include "reports/adapters_text.h"
#include "reports/export_code.h"
#include "reports/recommendation.h"

namespace plimsoll::reports {

namespace {
constexpr std::size_t kFrontLines = 12;

class Page {
 public:
  explicit Page(const Terminal& terminal) : terminal_(terminal) {}
  void paragraph(std::string_view text, std::string_view indent = "  ",
                 Colour colour = Colour::none) {
    for (const std::string& line : wrapped(printable(text), terminal_.columns, indent))
      put(coloured(clipped(line, terminal_.columns, terminal_), colour, terminal_));
  }
  void put(std::string_view line) {
    text_ += line;
    text_ += '\n';
  }
  void heading(std::string_view text) {
    text_ += '\n';
    put(clipped(text, terminal_.columns, terminal_));
  }
  std::string take() { return std::move(text_); }

 private:
  const Terminal& terminal_;
  std::string text_;
};

std::string rate(const std::optional<double>& tokens_per_second) {
  if (!tokens_per_second) return "n/a";
  return grouped(Count(static_cast<std::int64_t>(std::llround(*tokens_per_second))));
}

// Of the GPUs that are used.
std::optional<double> mfu(const Plan& plan, const std::optional<double>& tokens_per_second) {
  if (!tokens_per_second || !plan.time.peak_flops) return std::nullopt;
  const models::decisions::Mesh mesh = models::decisions::mesh_of(plan.strategy);
  const double gpus = static_cast<double>(mesh.ranks());
  const double tokens = static_cast<double>(plan.batch.tokens() * plan.batch.grad_accum) *
                        static_cast<double>(mesh.data().ranks);
  return plan.model_flops_per_step * *tokens_per_second / tokens / (gpus * *plan.time.peak_flops);
}

std::string percent(const std::optional<double>& share) {
  return share ? fmt::format("{:.1f}", 100 * *share) : "n/a";
}

// "pytorch FSDP2 /8" in a narrow column.
std::string approach(const models::Strategy& s) {
  std::string text(name_of(s.stack));
  if (s.gpus == 1) return text + " one GPU";
  if (s.stack == models::Stack::pytorch)
    text += std::array{" DDP",   " DDP+ZeRO-1",       " FSDP2 no reshard",
                       " FSDP2", " FSDP1 no reshard", " FSDP1"}[static_cast<std::size_t>(
                                                                    std::clamp(s.data.zero, 0, 3)) +
                                                                (is_fsdp1(s) ? 2 : 0)];
  else
    text += s.data.zero == 0 ? " DDP" : fmt::format(" ZeRO-{}", s.data.zero);
  if (s.data.shard_group > 0) text += fmt::format(" /{}", s.data.shard_group);
  return text;
}

std::string days(double days) {
  if (days < 100) return fmt::format("{:.3g}", days);
  return grouped(Count(static_cast<std::int64_t>(std::llround(days))));
}

std::string batch_text(const models::Batch& batch) {
  return fmt::format("{}x{}", batch.micro_batch, batch.grad_accum);
}

// Liger's kernels bring their loss.
std::string loss_text(const models::Strategy& s) {
  const bool brought = s.kernels == models::Kernels::liger && s.loss == models::Loss::fused;
  return brought ? "Liger kernels" : fmt::format("{} loss", name_of(s.loss));
}

void add_winner(Page& page, const Recommendation& answer) {
  const RankedPlan& best = answer.ranked.front();
  const models::Strategy& s = best.plan.strategy;
  std::string text =
      fmt::format("USE {}, {}, {}, recompute {}, {}, micro-batch {}", name_of(s.stack),
                  data_parallel_text(s), name_of(s.precision), models::text_of(s.recompute),
                  loss_text(s), best.plan.batch.micro_batch);
  if (best.plan.batch.grad_accum > 1)
    text += fmt::format(", accumulation {}", best.plan.batch.grad_accum);
  if (s.lora) text += ", " + adapters_kind(*s.lora);
  if (s.quantize)
    text += fmt::format(" on a base packed in {}", s.quantize->storage->name);
  else if (s.lora && s.param_dtype)
    text += fmt::format(" on a base in {}", name_of(*s.param_dtype));
  if (s.optimizer != models::Optimizer::adamw)
    text += fmt::format(", {}", models::rule_of(s.optimizer).name);
  if (s.offload.any())
    text +=
        fmt::format(", {} on {}", models::text_of(s.offload), s.offload.nvme ? "NVMe" : "the host");
  if (answer.stopped) text += " (interrupted: the best so far)";
  page.paragraph(text, "  ", Colour::green);
  std::string machine = fmt::format("{}: {} x {}", answer.model_name, s.gpus,
                                    best.plan.gpu ? best.plan.gpu->title : "unnamed GPU");
  if (answer.gpus_there && s.gpus < answer.gpus)
    machine += fmt::format(", {} left idle", answer.gpus - s.gpus);
  machine += fmt::format(", sequence {}", best.plan.batch.seq_len);
  page.paragraph(machine);
  if (s.stack == models::Stack::plimsoll && s.device == models::Device::cuda)
    page.paragraph(
        "Stack plimsoll is this project's own runtime; it has run on one GPU at a time (H100, "
        "H200), never on several.",
        "  ", Colour::yellow);
  page.heading("The same as");
  page.paragraph("  " + best.command, "    ");
  if (const std::string code = needed_code_note(s);
      !code.empty() && s.stack != models::Stack::plimsoll)
    page.paragraph(code);
  if (s.kernels == models::Kernels::liger)
    page.paragraph("Needs the package liger-kernel: the Trainer's use_liger_kernel=True.");
}

void add_list(Page& page, const Recommendation& answer) {
  // The least memory is that of the peak: what is reserved beyond it depends on how much there is.
  const bool peaks = answer.objective == "memory";
  page.heading(
      fmt::format("    strategy                    GPUs recompute batch  {:>9}  tokens/s   MFU",
                  peaks ? "peak" : "device"));
  for (std::size_t i = 0; i < answer.ranked.size(); ++i) {
    const Plan& plan = answer.ranked[i].plan;
    const std::optional<double>& speed = answer.ranked[i].tokens_per_second;
    page.put(fmt::format(
        "{:>2}  {} {:>4} {} {} {} {:>9} {:>5}", i + 1, padded(approach(plan.strategy), 27),
        plan.strategy.gpus, padded(models::text_of(plan.strategy.recompute), 9),
        padded(batch_text(plan.batch), 6), right(bytes_text(peaks ? plan.peak : plan.device), 9),
        rate(speed), percent(mfu(plan, speed))));
  }
}

void add_headroom(Page& page, const Recommendation& answer) {
  const Plan& best = answer.ranked.front().plan;
  if (!best.usable || !best.high_end) return;
  const Bytes left = *best.usable - best.high_end->device();
  const std::string high =
      left >= Bytes(0) ? bytes_text(left) + " free" : bytes_text(Bytes(0) - left) + " too little";
  page.put("");
  if (answer.high_end)
    return page.paragraph(fmt::format(
        "Every plan fits even if all assumed overheads (context, NCCL, fragmentation) come out at "
        "the high end of what was seen; of runs that nothing was fitted on at most 1 in 100 "
        "reserved "
        "more. Plan 1 then leaves {}. --min-headroom 0 assumes typical overheads.",
        high));
  page.paragraph(fmt::format(
      "Typical overheads are assumed{} (--min-headroom); at the high end of "
      "what was seen plan 1 leaves {}.",
      answer.min_headroom > Bytes(0) ? " and " + bytes_text(answer.min_headroom) + " kept free"
                                     : "",
      high));
}

void add_ties(Page& page, const Recommendation& answer) {
  if (!answer.fastest || answer.objective == "memory") return;
  page.paragraph(fmt::format(
      "The fastest that fits: {} tokens/s. Plans of one kind (stack, sharding) within {:.3g} % "
      "count "
      "as equally fast, of different kinds within {:.3g} %, and sharding or DeepSpeed must be "
      "faster "
      "by as much again: the estimate is no better than that (reports/accuracy.md). Among equals "
      "the simplest comes first, then the one with the most room.",
      rate(answer.fastest), 100 * answer.same_kind_margin, 100 * answer.tie_margin));
}

void add_reasons(Page& page, const Recommendation& answer) {
  for (std::size_t i = 0; i < answer.ranked.size(); ++i) {
    if (answer.ranked[i].why.empty()) continue;
    page.heading(i == 0 ? "Why plan 1" : fmt::format("Plan {}", i + 1));
    for (const std::string& why : answer.ranked[i].why) page.paragraph("  " + why, "    ");
  }
}

void add_front(Page& page, const Recommendation& answer, const Terminal& terminal) {
  if (answer.front.empty()) return;
  page.heading("Memory against speed: no plan needs less and is faster");
  page.put("       peak  tokens/s  strategy");
  const std::size_t n = answer.front.size(), shown = std::min(n, kFrontLines);
  for (std::size_t k = 0; k < shown; ++k) {
    // The ends always, those between at equal distances.
    const std::size_t i = shown == 1 ? 0 : k * (n - 1) / (shown - 1);
    const FrontPoint& point = answer.front[i];
    const std::string line =
        fmt::format("  {:>9} {:>9}  {}, {}, {}, batch {}{}", bytes_text(point.peak),
                    rate(point.tokens_per_second), approach(point.strategy),
                    models::text_of(point.strategy.recompute), loss_text(point.strategy),
                    batch_text(point.batch), point.strategy.optimizer_impl ? ", fused step" : "");
    page.put(clipped(line, terminal.columns, terminal));
  }
  if (shown < n) page.put(fmt::format("  ({} of {} points; --json has all)", shown, n));
}

void add_budget(Page& page, const Recommendation& answer) {
  if (!answer.budget_tokens || answer.ranked.empty()) return;
  page.heading(fmt::format("A budget of {:.3g} tokens", *answer.budget_tokens));
  const Plan& first = answer.ranked.front().plan;
  const double flops = 6 * first.active_parameters.real() * *answer.budget_tokens;
  page.put(fmt::format("  6 N D = {:.3g} FLOP", flops));
  for (std::size_t i = 0; i < answer.ranked.size(); ++i) {
    const RankedPlan& ranked = answer.ranked[i];
    if (!ranked.gpu_days) continue;
    const double gpus = static_cast<double>(ranked.plan.strategy.gpus);
    page.put(fmt::format("  {:>2}  {} GPU-days, {} days on {} GPUs", i + 1, days(*ranked.gpu_days),
                         days(*ranked.gpu_days / gpus), ranked.plan.strategy.gpus));
  }
}

void add_nothing(Page& page, const Recommendation& answer) {
  const NothingFits& nothing = *answer.nothing_fits;
  if (!nothing.closest) {
    page.paragraph("NOTHING CAN BE PLANNED for this model and these options", "  ", Colour::red);
    return;
  }
  const Plan& plan = nothing.closest->plan;
  std::string need = bytes_text(plan.device) + " on each GPU";
  if (answer.high_end && plan.high_end)
    need +=
        fmt::format(" ({} with overheads at their high end)", bytes_text(plan.high_end->device()));
  page.paragraph(
      fmt::format("NOTHING FITS: the closest plan needs {}; {} is available, {} too little", need,
                  plan.usable ? bytes_text(*plan.usable) : "?", bytes_text(nothing.shortfall)),
      "  ", Colour::red);
  page.heading("The closest plan");
  page.paragraph("  " + nothing.closest->command, "    ");
  if (nothing.would_fit.empty()) {
    page.heading("No single change of tokens, GPUs or card makes it fit.");
    return;
  }
  page.heading("What would fit, each alone");
  for (const Change& change : nothing.would_fit) {
    page.put(fmt::format("  {:<24} {:>9} on each GPU", change.change, bytes_text(change.device)));
    page.paragraph("    " + change.command, "      ");
  }
}

}  // namespace

std::string recommendation_table(const Recommendation& answer, const Terminal& terminal) {
  Page page(terminal);
  if (answer.nothing_fits) {
    add_nothing(page, answer);
  } else if (!answer.ranked.empty()) {
    add_winner(page, answer);
    add_list(page, answer);
    add_headroom(page, answer);
    add_ties(page, answer);
    add_reasons(page, answer);
    add_budget(page, answer);
    add_front(page, answer, terminal);
  } else {
    page.paragraph("Interrupted before anything was found");
  }
  std::string considered = fmt::format(
      "{} strategies compared by evaluating {} in {:.3g} s. Not considered:",
      grouped(Count(answer.points)), grouped(Count(answer.evaluated)), answer.elapsed_seconds);
  for (const std::string& name : answer.not_considered)
    considered += (&name == answer.not_considered.data() ? " " : ", ") + name;
  page.put("");
  page.paragraph(considered);
  for (const std::string& note : answer.notes) page.paragraph(note);
  return page.take();
}

}  // namespace plimsoll::reports
