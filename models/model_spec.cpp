#include "models/model_spec.h"

namespace plimsoll::models {

Shape::Shape(std::initializer_list<std::int64_t> lengths) {
  check(lengths.size() <= axes.size(), ErrorKind::internal, "a parameter has at most 4 axes");
  for (const std::int64_t length : lengths) axes[static_cast<std::size_t>(rank++)] = length;
}

Count Shape::elements() const {
  std::int64_t n = 1;
  for (int i = 0; i < rank; ++i) n = checked_multiply(n, axes[static_cast<std::size_t>(i)]);
  return Count(n);
}

std::string_view name_of(ModuleKind kind) {
  constexpr std::array<std::string_view, 8> names{"embedding", "linear", "expert", "router",
                                                  "norm",      "conv",   "head",   "other"};
  return names[static_cast<std::size_t>(kind)];
}

std::int64_t ParameterRow::instances() const {
  std::int64_t n = 1;
  for (const IndexRange& range : ranges) n = checked_multiply(n, range.count);
  return n;
}

Count ParameterRow::elements() const {
  if (tied) return Count(0);
  return shape.elements() * instances();
}

Count ModelSpec::parameter_count() const {
  Count total;
  for (const ParameterRow& row : parameters) total += row.elements();
  return total;
}

Count ModelSpec::active_parameter_count() const {
  Count total;
  for (const ParameterRow& row : parameters) {
    ParameterRow visited = row;
    if (row.active > 0 && row.fused_experts)
      visited.shape.axes[0] = row.active;
    else if (row.active > 0 && !row.ranges.empty())
      visited.ranges.back().count = row.active;
    total += visited.elements();
  }
  return total;
}

std::string expand(const std::string& name, const std::vector<std::int64_t>& indices) {
  std::string out;
  std::size_t from = 0;
  for (const std::int64_t index : indices) {
    const std::size_t at = name.find("{}", from);
    if (at == std::string::npos) break;
    out += name.substr(from, at - from) + std::to_string(index);
    from = at + 2;
  }
  return out + name.substr(from);
}

const ParameterRow& tied_table(const ModelSpec& model, const ParameterRow& tied) {
  for (const ParameterRow& row : model.parameters)
    if (row.module == ModuleKind::embedding && !row.tied && row.shape == tied.shape) return row;
  fail(ErrorKind::internal, model.name + ": no table that " + tied.name + " is tied to");
}

std::vector<std::string> tensor_names(const ParameterRow& row) {
  std::vector<std::string> names;
  std::vector<std::int64_t> at(row.ranges.size());
  for (std::int64_t i = 0; i < row.instances(); ++i) {
    std::int64_t rest = i;
    for (std::size_t r = row.ranges.size(); r-- > 0;) {
      const IndexRange& range = row.ranges[r];
      at[r] = range.first + rest % range.count * range.step;
      rest /= range.count;
    }
    names.push_back(expand(row.name, at));
  }
  return names;
}

}  // namespace plimsoll::models
