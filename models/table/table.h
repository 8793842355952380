// Builds a parameter table in the order of the modules, with the names of the checkpoint.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "models/table/family.h"

namespace plimsoll::models::families {

class Table {
 public:
  // Rows added by `body` are named "<module>.…"; an empty name changes nothing.
  template <class Body>
  void inside(std::string_view module, Body body) {
    const std::size_t length = prefix_.size();
    if (!module.empty()) prefix_.append(module).push_back('.');
    body();
    prefix_.resize(length);
  }

  // Rows added by `body` are named "<module>.{}.…" and stand for range.count tensors each.
  // A range of count 0 adds nothing.
  template <class Body>
  void repeat(std::string_view module, IndexRange range, Body body) {
    if (range.count == 0) return;
    ranges_.push_back(range);
    inside(std::string(module) + ".{}", std::move(body));
    ranges_.pop_back();
  }
  template <class Body>
  void repeat(std::string_view module, std::int64_t count, Body body) {
    repeat(module, IndexRange{0, count, 1}, std::move(body));
  }
  // Routed experts: as `repeat`, of which one token visits `active`.
  template <class Body>
  void experts(std::string_view module, std::int64_t count, std::int64_t active, Body body) {
    const std::int64_t before = std::exchange(active_, active);
    repeat(module, count, std::move(body));
    active_ = before;
  }

  // Each adds "<module>.weight" and, with `bias`, "<module>.bias".
  void embedding(std::string_view module, std::int64_t rows, std::int64_t width);
  void linear(std::string_view module, std::int64_t in, std::int64_t out, bool bias = false,
              ModuleKind kind = ModuleKind::linear);
  // A mixture's router, in a module of its own (ParameterRow::bare).
  void router(std::string_view module, std::int64_t in, std::int64_t out);
  // A matrix of one expert, in the parameter `stacked` of all (ParameterRow).
  void expert(std::string_view module, std::int64_t in, std::int64_t out, std::string_view stacked);
  void conv1d(std::string_view module, std::int64_t in, std::int64_t out);  // GPT-2's, with bias
  void norm(std::string_view module, std::int64_t width, bool bias);
  void rms_norm(std::string_view module, std::int64_t width) { norm(module, width, false); }
  void layer_norm(std::string_view module, std::int64_t width) { norm(module, width, true); }
  // The output head; `tied`: shares the embedding's storage.
  void head(std::string_view module, std::int64_t width, std::int64_t vocab, bool tied,
            bool bias = false);

  // One row with its whole name ("class_embedding").
  ParameterRow& parameter(std::string_view name, Shape shape, ModuleKind kind);

  std::vector<ParameterRow> take() { return std::move(rows_); }

 private:
  std::string prefix_;
  std::vector<IndexRange> ranges_;
  std::int64_t active_ = 0;
  std::vector<ParameterRow> rows_;
};

// Number of labels of a classifier: num_labels, or the entries of id2label, or 2.
std::int64_t labels(const Config& config);

// What most decoders put on top for classification: "score" without a bias for sequences,
// `token_module` with one for tokens. Nothing for the other heads.
void add_classifier(Table& table, const Config& config, Head head, std::int64_t hidden,
                    std::string_view token_module = "classifier");

// How many of `experts` one token visits: the field's value, at most all. null: 0 (not known).
std::int64_t active_experts(const Config& config, const char* key, std::int64_t fallback,
                            std::int64_t experts);

// Indices (ascending, different) as few ranges: 0 1 2 5 7 9 -> {0, 3, 1} {5, 3, 2}.
std::vector<IndexRange> ranges_of(const std::vector<std::int64_t>& indices);

}  // namespace plimsoll::models::families
