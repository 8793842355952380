#include "models/recompute.h"

#include <algorithm>
#include <charconv>
#include <set>

#include "models/base/error.h"
#include "models/base/nearest.h"
#include "models/base/utf8.h"
#include "models/run_names.h"

namespace plimsoll::models {

namespace {

constexpr std::string_view kAttention = "attention";

// "self_attn.q_proj" for "q_proj".
bool ends_with_parts(std::string_view name, std::string_view parts) {
  return name.ends_with(parts) &&
         (name.size() == parts.size() || name[name.size() - parts.size() - 1] == '.');
}

std::string_view last_part(std::string_view name) {
  return name.substr(name.find_last_of('.') + 1);
}

bool names(std::string_view kept, const Node& node) {
  if (node.kind == OpKind::attention) return kept == kAttention;
  return node.kind == OpKind::linear && ends_with_parts(node.name, kept);
}

bool counts_layers(RecomputeKind kind) {
  return kind == RecomputeKind::every || kind == RecomputeKind::recursive || leaves_layers(kind);
}

std::optional<std::vector<std::string>> kept_from(std::string_view list) {
  std::set<std::string> kept;
  for (std::string_view rest = list;;) {
    const std::size_t plus = rest.find('+');
    const std::string_view name = rest.substr(0, plus);
    const bool plain = std::ranges::all_of(name, [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '.';
    });
    if (name.empty() || !plain || !kept.emplace(name).second) return std::nullopt;
    if (plus == std::string_view::npos) break;
    rest.remove_prefix(plus + 1);
  }
  if (kept.size() > 1 && kept.contains(kTorchtitanOps)) return std::nullopt;
  return std::vector<std::string>(kept.begin(), kept.end());
}

}  // namespace

std::string text_of(const Recompute& recompute) {
  std::string text(name_of(recompute.kind));
  if (counts_layers(recompute.kind)) text += ":" + std::to_string(recompute.layers);
  char before = ':';
  for (const std::string& kept : recompute.kept) (text += std::exchange(before, '+')) += kept;
  return text;
}

std::optional<Recompute> recompute_from(std::string_view text) {
  // Megatron's --recompute-method uniform: a checkpoint around each N layers, its
  // --recompute-num-layers (megatron/core/transformer/transformer_block.py).
  constexpr std::string_view kUniform = "uniform:";
  if (text.starts_with(kUniform))
    return recompute_from("every:" + std::string(text.substr(kUniform.size())));
  // Megatron's --recompute-granularity selective, its --recompute-modules core_attn: a checkpoint
  // around attention alone, which keeps queries, keys and values.
  if (text == "core_attn") return Recompute{RecomputeKind::selective};
  const std::size_t colon = text.find(':');
  const auto kind = choice_from<RecomputeKind>(text.substr(0, colon));
  if (!kind) return std::nullopt;
  const bool takes_more = counts_layers(*kind) || kind == RecomputeKind::ops;
  if (takes_more != (colon != std::string_view::npos)) return std::nullopt;
  if (!takes_more) return Recompute{*kind};
  const std::string_view more = text.substr(colon + 1);
  if (kind == RecomputeKind::ops) {
    auto kept = kept_from(more);
    if (!kept) return std::nullopt;
    return Recompute{RecomputeKind::ops, 1, std::move(*kept)};
  }
  std::int64_t layers = 0;
  const auto [end, error] = std::from_chars(more.data(), more.data() + more.size(), layers);
  if (error != std::errc() || end != more.data() + more.size() || layers < 1 || layers > 999'999)
    return std::nullopt;
  return Recompute{*kind, layers};
}

bool keeps_torchtitan_ops(const Recompute& recompute) {
  return !recompute.kept.empty() && recompute.kept.front() == kTorchtitanOps;
}

bool keeps(const Recompute& recompute, const Node& node, int number) {
  if (keeps_torchtitan_ops(recompute))
    return node.kind == OpKind::attention || node.kind == OpKind::scatter_sequence ||
           (node.kind == OpKind::linear && number % 2 == 0);
  return std::ranges::any_of(recompute.kept,
                             [&](const std::string& kept) { return names(kept, node); });
}

std::vector<std::string> keepable(const Block& block) {
  std::vector<std::string> out;
  for (const Node& node : block.nodes) {
    if (node.kind != OpKind::linear && node.kind != OpKind::attention) continue;
    const std::string name(node.kind == OpKind::attention ? kAttention : last_part(node.name));
    if (std::ranges::find(out, name) == out.end()) out.push_back(name);
  }
  return out;
}

void check_layers(const Recompute& recompute, std::int64_t layers) {
  check(!leaves_layers(recompute.kind) || recompute.layers <= layers, ErrorKind::bad_input, [&] {
    return "--recompute " + text_of(recompute) + ": the model has " + std::to_string(layers) +
           (layers == 1 ? " layer" : " layers");
  });
}

void check_kept(const Recompute& recompute,
                const std::vector<std::shared_ptr<const Block>>& blocks) {
  for (const std::string& kept : recompute.kept) {
    const auto fits = [&](const std::shared_ptr<const Block>& block) {
      return std::ranges::any_of(block->nodes, [&](const Node& node) { return names(kept, node); });
    };
    if (kept == kTorchtitanOps || std::ranges::any_of(blocks, fits)) continue;
    const std::vector<std::string> accepted = keepable(*blocks.front());
    std::string all;
    for (const std::string& name : accepted) (all += all.empty() ? "" : ", ") += name;
    const std::vector<std::string_view> candidates(accepted.begin(), accepted.end());
    const std::string near = nearest(kept, candidates);
    std::string message = "--recompute ops: '" + shortened(kept);
    message += "' names nothing in this model's layers";
    if (!near.empty()) message.append("; did you mean '").append(near).append("'?");
    fail(ErrorKind::bad_input, message.append(" (accepted: ").append(all).append(")"));
  }
}

}  // namespace plimsoll::models
