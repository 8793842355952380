#include "planner/loading/weights.h"

#include <algorithm>
#include <compare>
#include <cstdint>

#include "models/mxfp4.h"

namespace plimsoll::planner::loading {

namespace {

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

// As Python compares its tuples: a number, a word, or a word and the number behind it.
struct Part {
  bool is_word = false;
  std::string_view word;
  bool has_number = false;
  std::string_view number;  // without leading zeros

  std::strong_ordering operator<=>(const Part& other) const {
    if (const auto kind = is_word <=> other.is_word; kind != 0) return kind;
    if (const auto words = word <=> other.word; words != 0) return words;
    if (const auto behind = has_number <=> other.has_number; behind != 0) return behind;
    if (const auto length = number.size() <=> other.number.size(); length != 0) return length;
    return number <=> other.number;
  }
  bool operator==(const Part& other) const { return (*this <=> other) == 0; }
};

Part part_of(std::string_view text) {
  std::size_t word = text.size();
  while (word > 0 && is_digit(text[word - 1])) --word;
  std::string_view number = text.substr(word);
  const bool has_number = !number.empty();
  while (number.size() > 1 && number.front() == '0') number.remove_prefix(1);
  return {word > 0 || text.empty(), text.substr(0, word), has_number, number};
}

std::vector<Part> parts_of(std::string_view name) {
  std::vector<Part> parts;
  for (std::size_t from = 0; from <= name.size();) {
    const std::size_t dot = std::min(name.find('.', from), name.size());
    parts.push_back(part_of(name.substr(from, dot - from)));
    from = dot + 1;
  }
  return parts;
}

Weight weight_of(const models::ParameterRow& row, std::string name, bool mxfp4,
                 const std::optional<models::Quantization>& quantize) {
  Weight weight{.name = std::move(name),
                .elements = row.shape.elements(),
                .head = row.module == models::ModuleKind::head};
  // transformers 5.17, quantizers/quantizer_mxfp4.py, get_weight_conversions.
  weight.unpacks = mxfp4 && (weight.name.ends_with("experts.gate_up_proj") ||
                             weight.name.ends_with("experts.down_proj"));
  if (!quantize || !models::packs_module(row) || row.shape.rank != 2) return weight;
  weight.packed = quantize->storage;
  weight.transposed = row.transposed;
  weight.unpacked = {row.shape.axes[row.transposed ? 1 : 0],
                     row.shape.axes[row.transposed ? 0 : 1]};
  return weight;
}

}  // namespace

bool comes_before(std::string_view a, std::string_view b) {
  return parts_of(a) < parts_of(b);
}

std::vector<Weight> weights_of(const models::ModelSpec& model, const models::Strategy& strategy) {
  std::vector<Weight> weights;
  const auto& rows = model.parameters;
  for (std::size_t first = 0; first < rows.size();) {
    // Rows behind one another whose first index is the same layer's.
    std::size_t last = first + 1;
    while (last < rows.size() && !rows[first].ranges.empty() && !rows[last].ranges.empty() &&
           rows[last].ranges.front() == rows[first].ranges.front())
      ++last;
    const std::int64_t layers = rows[first].ranges.empty() ? 1 : rows[first].ranges.front().count;
    for (std::int64_t i = 0; i < layers; ++i)
      for (std::size_t at = first; at < last; ++at) {
        const models::ParameterRow& row = rows[at];
        if (row.tied) continue;
        const std::vector<std::string> names = models::tensor_names(row);
        const std::size_t each = names.size() / static_cast<std::size_t>(layers);
        for (std::size_t j = 0; j < each; ++j)
          weights.push_back(weight_of(row, names[static_cast<std::size_t>(i) * each + j],
                                      models::is_published_in_mxfp4(model.model_type),
                                      strategy.quantize));
      }
    first = last;
  }
  return weights;
}

}  // namespace plimsoll::planner::loading
