#include "models/table/table.h"

namespace plimsoll::models::families {

ParameterRow& Table::parameter(std::string_view name, Shape shape, ModuleKind kind) {
  ParameterRow row;
  row.name = prefix_ + std::string(name);
  row.shape = shape;
  row.module = kind;
  row.ranges = ranges_;
  row.active = active_;
  return rows_.emplace_back(std::move(row));
}

void Table::embedding(std::string_view module, std::int64_t rows, std::int64_t width) {
  parameter(std::string(module) + ".weight", {rows, width}, ModuleKind::embedding);
}

void Table::linear(std::string_view module, std::int64_t in, std::int64_t out, bool bias,
                   ModuleKind kind) {
  parameter(std::string(module) + ".weight", {out, in}, kind);
  if (bias) parameter(std::string(module) + ".bias", {out}, kind);
}

void Table::router(std::string_view module, std::int64_t in, std::int64_t out) {
  linear(module, in, out);
  rows_.back().bare = true;
}

void Table::expert(std::string_view module, std::int64_t in, std::int64_t out,
                   std::string_view stacked) {
  parameter(std::string(module) + ".weight", {out, in}, ModuleKind::expert).stacked = stacked;
}

void Table::conv1d(std::string_view module, std::int64_t in, std::int64_t out) {
  parameter(std::string(module) + ".weight", {in, out}, ModuleKind::linear).transposed = true;
  parameter(std::string(module) + ".bias", {out}, ModuleKind::linear);
}

void Table::norm(std::string_view module, std::int64_t width, bool bias) {
  parameter(std::string(module) + ".weight", {width}, ModuleKind::norm);
  if (bias) parameter(std::string(module) + ".bias", {width}, ModuleKind::norm);
}

void Table::head(std::string_view module, std::int64_t width, std::int64_t vocab, bool tied,
                 bool bias) {
  parameter(std::string(module) + ".weight", {vocab, width}, ModuleKind::head).tied = tied;
  if (bias) parameter(std::string(module) + ".bias", {vocab}, ModuleKind::head);
}

std::int64_t labels(const Config& config) {
  const std::int64_t named = config.entries("id2label");
  return config.optional_count("num_labels", named > 0 ? named : 2);
}

void add_classifier(Table& table, const Config& config, Head head, std::int64_t hidden,
                    std::string_view token_module) {
  if (head == Head::sequence_classification)
    table.linear("score", hidden, labels(config), false, ModuleKind::head);
  if (head == Head::token_classification)
    table.linear(token_module, hidden, labels(config), true, ModuleKind::head);
}

std::int64_t active_experts(const Config& config, const char* key, std::int64_t fallback,
                            std::int64_t experts) {
  const std::int64_t active = config.natural(key, fallback);
  if (active > experts) config.refuse(key, "at most the number of experts");
  return active;
}

std::vector<IndexRange> ranges_of(const std::vector<std::int64_t>& indices) {
  std::vector<IndexRange> ranges;
  for (const std::int64_t index : indices) {
    if (!ranges.empty()) {
      IndexRange& last = ranges.back();
      if (last.count == 1) last.step = index - last.first;
      if (index == last.first + last.count * last.step) {
        ++last.count;
        continue;
      }
    }
    ranges.push_back({.first = index, .count = 1, .step = 1});
  }
  return ranges;
}

}  // namespace plimsoll::models::families
