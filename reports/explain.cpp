#include "reports/explain.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "models/base/error.h"
#include "models/base/nearest.h"
#include "models/base/utf8.h"

namespace plimsoll::reports {

namespace {

constexpr std::size_t kMostRows = 40;

class Lines {
 public:
  explicit Lines(const Terminal& terminal) : terminal_(terminal) {}
  void add(std::string_view text, std::string_view indent = "  ") {
    for (const std::string& line : wrapped(printable(text), terminal_.columns, indent))
      text_ += clipped(line, terminal_.columns, terminal_) + "\n";
  }
  void row(const std::string& line) { text_ += clipped(line, terminal_.columns, terminal_) + "\n"; }
  void blank() { text_ += "\n"; }
  std::string take() { return std::move(text_); }

 private:
  const Terminal& terminal_;
  std::string text_;
};

// "layers.31.mlp" is "layers.*.mlp".
std::string without_numbers(std::string_view name) {
  std::string out;
  for (std::size_t from = 0; from <= name.size();) {
    const std::size_t dot = std::min(name.find('.', from), name.size());
    const std::string_view part = name.substr(from, dot - from);
    const bool number =
        !part.empty() && part.find_first_not_of("0123456789") == std::string_view::npos;
    out += number ? "*" : std::string(part);
    if (dot < name.size()) out += '.';
    from = dot + 1;
  }
  return out;
}

// Of the tensor's own layer: "forward layers.0.mlp.act" is "forward mlp.act".
std::string inside(const std::string& place, const std::string& tensor) {
  const std::size_t dot = tensor.find('.');
  const std::size_t end = dot == std::string::npos ? dot : tensor.find('.', dot + 1);
  if (end == std::string::npos || without_numbers(tensor.substr(dot + 1, end - dot - 1)) != "*")
    return place;
  const std::string layer = tensor.substr(0, end + 1);
  const std::size_t at = place.find(layer);
  return at == std::string::npos ? place : place.substr(0, at) + place.substr(at + layer.size());
}

std::string size_text(const TensorGroup& group) {
  if (group.count == 1) return fmt::format("{} bytes", grouped(Count(group.bytes.value())));
  if (group.least == group.most)
    return fmt::format("{} of {} bytes", group.count, grouped(Count(group.least.value())));
  return fmt::format("{} of {} to {} bytes", group.count, grouped(Count(group.least.value())),
                     grouped(Count(group.most.value())));
}

const TensorGroup* find(const std::vector<TensorGroup>& groups, const std::string& name) {
  const auto found = std::ranges::find(groups, name, &TensorGroup::name);
  return found == groups.end() ? nullptr : &*found;
}

std::string_view short_phase(std::string_view phase) {
  if (phase == "forward") return "fwd";
  return phase == "backward" ? "bwd" : phase.substr(0, 3);
}

std::string signed_bytes(Bytes change) {
  return change < Bytes(0) ? "-" + bytes_text(Bytes(-change.value())) : "+" + bytes_text(change);
}

void add_device(Lines& lines, const Plan& plan) {
  lines.add(fmt::format("Device {} = reserved {} + context {} + NCCL {} + libraries {}",
                        bytes_text(plan.device), bytes_text(plan.reserved),
                        bytes_text(plan.overhead.context), bytes_text(plan.overhead.nccl),
                        bytes_text(plan.overhead.libraries)));
  lines.add(fmt::format(
      "Reserved {} = peak {} + {} of rounding and gaps, by a replay of every "
      "request of two steps in the allocator",
      bytes_text(plan.reserved), bytes_text(plan.peak), bytes_text(plan.reserved - plan.peak)));
  lines.add(
      fmt::format("Peak {} ({} bytes): rank {}, {}, at {}; the tensors that live then, and "
                  "no other figure",
                  bytes_text(plan.peak), grouped(Count(plan.peak.value())), plan.peak_place.rank,
                  plan.peak_place.phase, plan.peak_place.where));
}

void add_peak(Lines& lines, const Plan& plan, const std::vector<TensorGroup>& groups) {
  Bytes rest(0), all(0);
  std::size_t rows = 0, others = 0;
  lines.blank();
  lines.row("  at the peak  tensors  name, and what it is (from its birth to its death)");
  for (const TensorGroup& group : groups) {
    if (group.at_peak == 0) continue;
    all += group.peak_bytes;
    if (rows++ >= kMostRows) {
      rest += group.peak_bytes;
      ++others;
      continue;
    }
    lines.row(fmt::format("  {} {}  {}", right(bytes_text(group.peak_bytes), 11),
                          right(std::to_string(group.at_peak), 8), printable(group.name)));
    lines.row(fmt::format("{}{}: {} - {}", std::string(24, ' '), group.category,
                          printable(group.born), printable(group.dies)));
  }
  if (others > 0)
    lines.row(fmt::format("  {}           of {} other names", right(bytes_text(rest), 11), others));
  // Scratch of the op itself, and the allocator's rounding of each block, have no name.
  if (all != plan.peak)
    lines.row(fmt::format("  {}           inside the op, and blocks' rounding",
                          right(bytes_text(plan.peak - all), 11)));
}

void add_changes(Lines& lines, const Plan& plan, const std::vector<Replanned>& changes) {
  lines.blank();
  lines.row("What would make the peak smaller (each planned again)");
  for (const Replanned& change : changes)
    if (change.peak < plan.peak)
      lines.row(fmt::format("  {}  {}  to {}", padded(change.option, 28),
                            right(signed_bytes(change.peak - plan.peak), 10),
                            bytes_text(change.peak)));
}

void add_assumptions(Lines& lines, const Plan& plan) {
  lines.blank();
  lines.row("Figures that no formula gives, and who says so");
  for (const Assumption& assumption : plan.assumptions)
    lines.add(fmt::format("  {}: {} ({}; {})", assumption.what, assumption.value, assumption.basis,
                          assumption.source),
              "    ");
}

void add_growth(Lines& lines, const Plan& plan, const TensorGroup& group,
                const std::vector<TokenGrowth>& growth) {
  std::string text;
  bool by_token = !growth.empty();
  for (const TokenGrowth& other : growth) {
    const TensorGroup* then = find(other.change.groups, group.name);
    if (then == nullptr || group.bytes == Bytes(0)) return;
    const double times = then->bytes.real() / group.bytes.real();
    text += fmt::format("{} x{:.4g} with {}", text.empty() ? "grows:" : ",", times,
                        other.change.option);
    by_token = by_token && times == other.tokens;
  }
  const std::int64_t tokens = plan.batch.tokens();
  if (by_token && group.least.value() % tokens == 0)
    text += fmt::format("; one is {} bytes for each of {} tokens", group.least.value() / tokens,
                        grouped(Count(tokens)));
  if (!text.empty()) lines.add("  " + text, "    ");
}

}  // namespace

std::vector<TensorGroup> tensor_groups(const Plan& plan) {
  std::map<std::string, TensorGroup> groups;
  for (const TensorLine& tensor : plan.tensors) {
    const std::string name = without_numbers(tensor.name);
    auto [it, is_new] = groups.try_emplace(name + "\n" + tensor.category);
    TensorGroup& group = it->second;
    if (is_new) {
      group = {.name = name,
               .category = tensor.category,
               .born = inside(tensor.born, tensor.name),
               .dies = inside(tensor.dies, tensor.name)};
      group.least = group.most = tensor.bytes;
    }
    group.count += tensor.repeat;
    group.bytes += tensor.bytes * tensor.repeat;
    group.least = std::min(group.least, tensor.bytes);
    group.most = std::max(group.most, tensor.bytes);
    if (!tensor.at_peak) continue;
    group.at_peak += tensor.repeat;
    group.peak_bytes += tensor.bytes * tensor.repeat;
  }
  std::vector<TensorGroup> out;
  for (auto& [name, group] : groups) out.push_back(std::move(group));
  std::ranges::stable_sort(out, [](const TensorGroup& a, const TensorGroup& b) {
    return std::pair(a.peak_bytes, a.bytes) > std::pair(b.peak_bytes, b.bytes);
  });
  return out;
}

std::string explanation(const Plan& plan, const std::vector<Replanned>& changes,
                        const Terminal& terminal) {
  Lines lines(terminal);
  add_device(lines, plan);
  add_peak(lines, plan, tensor_groups(plan));
  add_changes(lines, plan, changes);
  add_assumptions(lines, plan);
  return lines.take();
}

std::vector<TensorGroup> groups_called(const std::vector<TensorGroup>& all,
                                       const std::string& asked) {
  const std::string name = without_numbers(asked);
  std::vector<TensorGroup> out;
  std::vector<std::string_view> names;
  for (const TensorGroup& group : all) {
    names.push_back(group.name);
    if (group.name == name || group.name.ends_with("." + name) ||
        group.name.find("." + name + ".") != std::string::npos ||
        group.name.starts_with(name + "."))
      out.push_back(group);
  }
  if (!out.empty()) return out;
  const std::string near = nearest(name, names);
  fail(
      ErrorKind::bad_input,
      fmt::format("--explain {}: no tensor of this step is called so{} (time, all, or a name as "
                  "--explain alone lists them)",
                  shortened(asked), near.empty() ? "" : fmt::format("; did you mean '{}'?", near)));
}

std::string tensor_explanation(const Plan& plan, const std::vector<TensorGroup>& asked,
                               const std::vector<TokenGrowth>& growth,
                               const std::vector<Replanned>& changes, const Terminal& terminal) {
  Lines lines(terminal);
  for (std::size_t i = 0; i < asked.size(); ++i) {
    const TensorGroup& group = asked[i];
    if (i > 0) lines.blank();
    lines.add(fmt::format("{}: {} of {}", group.name, bytes_text(group.bytes), group.category));
    lines.add("  " + size_text(group), "    ");
    lines.add("  made by: " + group.born, "    ");
    lines.add("  dies: " + group.dies, "    ");
    lines.add(
        fmt::format("  at the peak ({}, {}): {}", plan.peak_place.phase, plan.peak_place.where,
                    group.at_peak == 0 ? "none of it"
                                       : fmt::format("{}, {} of {}", bytes_text(group.peak_bytes),
                                                     group.at_peak, group.count)),
        "    ");
    add_growth(lines, plan, group, growth);
    for (const Replanned& change : changes) {
      const TensorGroup* other = find(change.groups, group.name);
      const Bytes now = other == nullptr ? Bytes(0) : other->bytes;
      if (now >= group.bytes) continue;
      lines.row(fmt::format("  {}  {}; peak {}", padded(change.option, 28),
                            other == nullptr ? "none of it" : bytes_text(now),
                            signed_bytes(change.peak - plan.peak)));
    }
  }
  return lines.take();
}

std::string time_explanation(const Plan& plan, const std::vector<OpTimeLine>& ops,
                             const Terminal& terminal) {
  Lines lines(terminal);
  double all = 0;
  for (const OpTimeLine& op : ops) all += op.seconds;
  check(all > 0, ErrorKind::unsupported,
        "--explain time: no time is predicted for this GPU and precision");
  lines.add(
      fmt::format("Forward and backward of a step: {:.4g} ms on the GPU, by op and phase; "
                  "GEMMs and attention by their FLOPs, all else by the bytes that it "
                  "moves",
                  1e3 * all));
  lines.row("         ms   share    TFLOP      bytes kernels  phase, op (*: of all layers)");
  for (const OpTimeLine& op : ops) {
    if (op.seconds <= 0) continue;
    const std::string name =
        op.op.starts_with("layers.*.") ? op.op.substr(std::string_view("layers.").size()) : op.op;
    lines.row(fmt::format(
        "  {:>9.3f} {:>6.2f}% {:>8} {:>10} {:>7.0f}  {} {}", 1e3 * op.seconds,
        100 * op.seconds / all, op.flops > 0 ? fmt::format("{:.3f}", op.flops / 1e12) : "",
        op.bytes >= 1 ? bytes_text(Bytes(static_cast<std::int64_t>(op.bytes))) : "", op.kernels,
        short_phase(op.phase), printable(name)));
  }
  const Time& time = plan.time;
  if (time.step_seconds && time.compute_seconds && time.optimizer_seconds)
    lines.add(fmt::format(
        "The step: {:.4g} ms = compute {:.4g} (with what messages and the host's launches cost "
        "beside it) + messages that nothing hides {:.4g} + optimizer {:.4g}",
        1e3 * *time.step_seconds, 1e3 * *time.compute_seconds,
        1e3 * time.exposed_communication_seconds.value_or(0), 1e3 * *time.optimizer_seconds));
  return lines.take();
}

}  // namespace plimsoll::reports
