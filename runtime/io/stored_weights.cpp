#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <span>
#include <unordered_map>

#include "models/checkpoint_check.h"
#include "runtime/io/bitsandbytes_checkpoint.h"
#include "runtime/io/float_storage.h"
#include "runtime/io/weight_source.h"

namespace plimsoll::runtime::io {

namespace {
namespace fs = std::filesystem;
using kernels::TensorView;
using models::Checkpoint;
using models::Difference;
using models::DifferenceKind;
using models::StoredTensor;

// How many differences a message lists; the rest are counted.
constexpr std::size_t kMostListed = 4;

class StoredWeights : public WeightSource {
 public:
  explicit StoredWeights(std::string origin) : origin_(std::move(origin)) {}

  // `parameter` is that tensor's data. Error{unsupported}: its type.
  void add(const std::string& parameter, const StoredTensor& tensor) {
    const std::optional<DType> dtype = stored_dtype(tensor.dtype);
    check(dtype.has_value(), ErrorKind::unsupported, [&] {
      return fmt::format("{}: tensor '{}' is stored as {}: weights are read from F32, BF16 or F16",
                         tensor.file, tensor.name.substr(0, 100), tensor.dtype);
    });
    files_.try_emplace(tensor.file, tensor.file);
    places_[parameter] = {&files_.at(tensor.file), tensor.begin, tensor.elements().value(), *dtype};
  }
  // One that is packed, a matrix of `shape`: the numbers of all tensors that it takes. None: it is
  // not packed.
  std::vector<std::size_t> add_packed(const std::string& parameter, const Checkpoint& checkpoint,
                                      std::size_t tensor, const models::Shape& shape) {
    std::vector<std::size_t> numbers{tensor};
    const auto packing = find_packing(checkpoint, tensor, shape, files_, numbers);
    if (!packing) return {};
    packed_.emplace(parameter, *packing);
    return numbers;
  }
  void alias(const std::string& parameter, const std::string& other) {
    places_[parameter] = places_.at(other);
  }

  void read(const std::string& parameter, std::int64_t first, TensorView into) const override {
    const auto it = places_.find(parameter);
    check(!packed_.contains(parameter), ErrorKind::internal,
          [&] { return parameter + " is packed in " + origin_ + ", and read as values"; });
    check(it != places_.end(), ErrorKind::internal,
          [&] { return origin_ + " was not asked for " + parameter; });
    const Place& place = it->second;
    const std::int64_t count = into.elements();
    check(first >= 0 && count <= place.elements - first, ErrorKind::internal,
          [&] { return "a piece of " + parameter + " beyond its end"; });
    // Whole bytes: fp32, bf16 or fp16.
    const std::int64_t width = std::max<std::int64_t>(1, bits(place.dtype) / 8);
    const std::int64_t step = kReadBytes / width;
    std::vector<std::byte> buffer(static_cast<std::size_t>(std::min(count, step) * width));
    for (std::int64_t done = 0; done < count; done += step) {
      const std::int64_t n = std::min(step, count - done);
      place.file->read(place.begin + (first + done) * width,
                       std::span(buffer).first(static_cast<std::size_t>(n * width)));
      convert({buffer.data(), place.dtype, {n}}, piece(into, done, n));
    }
  }

  std::int64_t elements(const std::string& parameter) const {
    return places_.at(parameter).elements;
  }
  std::string origin() const override { return origin_; }
  const models::PackedStorage* packed_as(const std::string& parameter) const override {
    const auto it = packed_.find(parameter);
    return it == packed_.end() ? nullptr : it->second.storage;
  }
  PackedValues packed(const std::string& parameter) const override {
    if (packed_as(parameter) == nullptr) return WeightSource::packed(parameter);
    return read_packing(packed_.at(parameter), files_);
  }

 private:
  struct Place {
    const InputFile* file;
    std::int64_t begin, elements;
    DType dtype;
  };
  std::string origin_;
  InputFiles files_;
  std::unordered_map<std::string, Place> places_;
  std::unordered_map<std::string, StoredPacking> packed_;
};

std::span<const std::int64_t> axes_of(const models::Shape& shape) {
  return std::span(shape.axes).first(static_cast<std::size_t>(shape.rank));
}

bool same_shape(const StoredTensor& tensor, const models::Shape& shape) {
  return std::ranges::equal(tensor.shape, axes_of(shape));
}

bool harmless(DifferenceKind kind) {
  switch (kind) {
    case DifferenceKind::quantized:
    case DifferenceKind::missing:
    case DifferenceKind::extra:
    case DifferenceKind::shape:
      return false;
    default:
      return true;
  }
}

// Whether the tensors of packed weights are all that the check calls quantized. It notes a tensor
// that is no parameter, or has another shape.
bool explain_quantized(const models::ModelSpec& model, const Checkpoint& checkpoint,
                       const models::CheckpointCheck& result,
                       const std::set<std::size_t>& of_packed) {
  std::int64_t noted = 0, explained = std::ssize(of_packed);
  for (const Difference& difference : result.differences)
    if (difference.kind == DifferenceKind::quantized) noted += difference.tensors;
  for (const models::Match& match : result.matches)
    if (of_packed.contains(match.tensor) &&
        same_shape(checkpoint.tensors[match.tensor], model.parameters[match.row].shape))
      --explained;
  return noted == explained;
}

void check_holds(const models::ModelSpec& model, const Checkpoint& checkpoint,
                 const models::CheckpointCheck& result, const std::set<std::size_t>& of_packed) {
  std::string texts;
  std::size_t found = 0;
  bool packed = false, head_missing = false;
  const bool explained = explain_quantized(model, checkpoint, result, of_packed);
  for (const Difference& difference : result.differences) {
    if (harmless(difference.kind)) continue;
    if (difference.kind == DifferenceKind::quantized && explained) continue;
    packed |= difference.kind == DifferenceKind::quantized;
    head_missing |= difference.kind == DifferenceKind::missing &&
                    difference.pattern.ends_with("lm_head.weight");
    if (found++ < kMostListed) texts += (texts.empty() ? "" : "; ") + difference.text;
  }
  if (found == 0) return;
  if (found > kMostListed) texts += fmt::format("; and {} more differences", found - kMostListed);
  if (head_missing) texts += " (does its config lack \"tie_word_embeddings\": true?)";
  fail(packed ? ErrorKind::unsupported : ErrorKind::bad_input,
       fmt::format("{} does not hold the weights of {}: {}", checkpoint.source, model.name, texts));
}

void check_no_doubles(const Checkpoint& checkpoint) {
  const auto& tensors = checkpoint.tensors;  // sorted by name
  for (std::size_t i = 1; i < tensors.size(); ++i)
    check(tensors[i].name != tensors[i - 1].name, ErrorKind::bad_input, [&] {
      return fmt::format("tensor '{}' is both in {} and in {}", tensors[i].name.substr(0, 100),
                         tensors[i - 1].file, tensors[i].file);
    });
}

// A head that is tied but stored all the same must be what it is tied to.
void check_copy(const StoredWeights& weights, const std::string& copy, const std::string& table,
                const std::string& source) {
  constexpr std::int64_t kStep = 1 << 16;
  const std::int64_t elements = weights.elements(copy);
  std::vector<float> a(kStep), b(kStep);
  for (std::int64_t first = 0; first < elements; first += kStep) {
    const std::int64_t n = std::min(kStep, elements - first);
    weights.read(copy, first, {a.data(), DType::fp32, {n}});
    weights.read(table, first, {b.data(), DType::fp32, {n}});
    check(std::equal(a.begin(), a.begin() + n, b.begin()), ErrorKind::bad_input, [&] {
      return fmt::format(
          "{}: '{}' is not '{}', to which the config ties it: set its "
          "tie_word_embeddings to false",
          source, copy, table);
    });
  }
}

std::string listed(const std::vector<std::string>& names) {
  std::string out;
  for (std::size_t i = 0; i < std::min(kMostListed, names.size()); ++i)
    out += (i == 0 ? "" : ", ") + names[i].substr(0, 100);
  if (names.size() > kMostListed) out += fmt::format(" and {} more", names.size() - kMostListed);
  return out;
}

std::string lengths(std::span<const std::int64_t> axes) {
  std::string out;
  for (const std::int64_t axis : axes) out += (out.empty() ? "" : ", ") + std::to_string(axis);
  return "[" + out + "]";
}

void check_shape(const StoredTensor& tensor, const models::Shape& shape) {
  const auto axes = axes_of(shape);
  check(same_shape(tensor, shape), ErrorKind::bad_input, [&] {
    return fmt::format("{}: '{}' has shape {}, the model and the adapter's rank give {}",
                       tensor.file, tensor.name, lengths(tensor.shape), lengths(axes));
  });
}

// Names that PEFT has given one tensor: with the adapter's name in some versions.
std::string adapter_name(std::string name) {
  const std::size_t at = name.find(".default");
  return at == std::string::npos ? name : name.erase(at, std::string_view(".default").size());
}
}  // namespace

PackedValues WeightSource::packed(const std::string& parameter) const {
  fail(ErrorKind::internal, parameter + " is not packed in " + origin());
}

std::unique_ptr<WeightSource> stored_weights(const models::ModelSpec& model,
                                             const fs::path& folder) {
  const std::optional<Checkpoint> checkpoint = models::find_checkpoint(folder);
  check(checkpoint.has_value(), ErrorKind::bad_input,
        [&] { return folder.string() + ": no safetensors files"; });
  check(checkpoint->has_shapes, ErrorKind::bad_input,
        [&] { return checkpoint->source + ": files that it names are not there"; });
  check_no_doubles(*checkpoint);
  const models::CheckpointCheck result = models::check_checkpoint(model, *checkpoint);
  auto weights = std::make_unique<StoredWeights>(checkpoint->source);
  std::set<std::size_t> of_packed;
  for (const models::Match& match : result.matches)
    for (const std::size_t tensor : weights->add_packed(match.parameter, *checkpoint, match.tensor,
                                                        model.parameters[match.row].shape))
      of_packed.insert(tensor);
  check_holds(model, *checkpoint, result, of_packed);
  for (const models::Match& match : result.matches)
    if (!of_packed.contains(match.tensor))
      weights->add(match.parameter, checkpoint->tensors[match.tensor]);
  for (const models::Match& match : result.matches) {
    const models::ParameterRow& row = model.parameters[match.row];
    if (row.tied)
      check_copy(*weights, match.parameter, models::tied_table(model, row).name,
                 checkpoint->source);
  }
  for (const models::ParameterRow& row : model.parameters)
    if (row.tied) weights->alias(row.name, models::tied_table(model, row).name);
  return weights;
}

std::unique_ptr<WeightSource> stored_adapter(const std::vector<models::LoraModule>& modules,
                                             const fs::path& path) {
  std::error_code error;
  const fs::path file = fs::is_directory(path, error) ? path / "adapter_model.safetensors" : path;
  const Checkpoint checkpoint = models::read_safetensors_header(file);
  std::map<std::string, const models::ParameterRow*> wanted;
  for (const models::LoraModule& module : modules)
    for (const models::ParameterRow* row : {&module.a, &module.b})
      for (std::string& name : models::tensor_names(*row)) wanted[std::move(name)] = row;
  auto weights = std::make_unique<StoredWeights>(file.string());
  std::vector<std::string> extra, missing;
  for (const StoredTensor& tensor : checkpoint.tensors) {
    const auto it = wanted.find(adapter_name(tensor.name));
    if (it == wanted.end()) {
      extra.push_back(tensor.name);
      continue;
    }
    check_shape(tensor, it->second->shape);
    weights->add(it->first, tensor);
    wanted.erase(it);
  }
  for (const auto& [name, row] : wanted) missing.push_back(name);
  check(missing.empty(), ErrorKind::bad_input,
        [&] { return file.string() + " lacks " + listed(missing); });
  check(extra.empty(), ErrorKind::bad_input, [&] {
    return file.string() + " has what no adapter of this run is: " + listed(extra) +
           " (do rank and targets match its adapter_config.json?)";
  });
  return weights;
}

}  // namespace plimsoll::runtime::io
