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

void add_score(Table& table, const Config& config, Head head, std::int64_t hidden) {
  const bool tokens = head == Head::token_classification;
  if (!tokens && head != Head::sequence_classification) return;
  table.linear("score", hidden, labels(config), tokens, ModuleKind::head);
}

}  // namespace plimsoll::models::families
