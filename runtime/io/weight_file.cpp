#include "runtime/io/weight_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <string_view>

#include "runtime/io/float_storage.h"
#include "runtime/io/weight_source.h"

namespace plimsoll::runtime::io {

namespace {
// Every tensor begins at a multiple of its width, as the format's own writer has it: wide types
// first, the header filled up to a multiple of 8. Written piece by piece: where a document of the
// JSON library goes (3.11) its destructor allocates, and a lack of memory would end the process.
std::string header_of(const std::vector<SavedTensor>& tensors, std::vector<std::int64_t>& begins) {
  const auto stored = [](DType dtype) {
    if (dtype == DType::int8) return std::string_view("I8");
    return dtype == DType::uint8 ? std::string_view("U8") : stored_name(dtype);
  };
  std::string text = R"({"__metadata__":{"format":"pt"})";
  std::set<std::string_view> names;
  std::int64_t at = 0;
  for (const SavedTensor& tensor : tensors) {
    check(names.insert(tensor.name).second, ErrorKind::internal,
          [&] { return "two tensors named " + tensor.name; });
    const std::int64_t end =
        checked_add(at, storage(Count(tensor.shape.elements()), tensor.dtype).value());
    std::string shape;
    for (int axis = 0; axis < tensor.shape.rank; ++axis)
      shape += (axis > 0 ? "," : "") + std::to_string(tensor.shape[axis]);
    text += fmt::format(R"(,{}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                        nlohmann::json(tensor.name).dump(), stored(tensor.dtype), shape, at, end);
    begins.push_back(at);
    at = end;
  }
  text += '}';
  text.resize((text.size() + 7) / 8 * 8, ' ');
  return text;
}
}  // namespace

std::string safetensors_header(const std::vector<SavedTensor>& tensors,
                               std::vector<std::int64_t>& begins) {
  const std::string header = header_of(tensors, begins);
  const std::uint64_t length = header.size();
  std::string bytes(sizeof length, '\0');
  std::memcpy(bytes.data(), &length, sizeof length);
  return bytes + header;
}

WeightFile::WeightFile(const std::filesystem::path& path, std::vector<SavedTensor> tensors)
    : file_(path) {
  std::ranges::stable_sort(tensors, [](const SavedTensor& a, const SavedTensor& b) {
    return std::pair(-bits(a.dtype), a.name) < std::pair(-bits(b.dtype), b.name);
  });
  std::vector<std::int64_t> begins;
  const std::string header = safetensors_header(tensors, begins);
  file_.write(0, std::as_bytes(std::span(header)));
  const std::int64_t data = std::ssize(header);
  for (std::size_t i = 0; i < tensors.size(); ++i)
    places_[tensors[i].name] = {tensors[i].dtype, data + begins[i], tensors[i].shape.elements(), 0};
}

WeightFile::Place& WeightFile::place_of(const std::string& name) {
  const auto it = places_.find(name);
  check(it != places_.end(), ErrorKind::internal, [&] { return "no tensor " + name + " to save"; });
  return it->second;
}

void WeightFile::write_bytes(const std::string& name, std::span<const std::byte> bytes) {
  Place& place = place_of(name);
  check(Bytes(std::ssize(bytes)) == storage(Count(place.elements), place.dtype),
        ErrorKind::internal, [&] { return "not all bytes of " + name; });
  file_.write(place.begin, bytes);
  place.written = place.elements;
}

void WeightFile::write(const std::string& name, std::int64_t first, kernels::ConstTensorView from) {
  Place& place = place_of(name);
  const std::int64_t count = from.elements();
  check(first >= 0 && count <= place.elements - first, ErrorKind::internal,
        [&] { return "a piece of " + name + " beyond its end"; });
  const std::int64_t width = std::max<std::int64_t>(1, bits(place.dtype) / 8);
  const std::int64_t step = kReadBytes / width;
  std::vector<std::byte> buffer(static_cast<std::size_t>(std::min(count, step) * width));
  for (std::int64_t done = 0; done < count; done += step) {
    const std::int64_t n = std::min(step, count - done);
    convert(piece(from, done, n), {buffer.data(), place.dtype, {n}});
    file_.write(place.begin + (first + done) * width,
                std::span(buffer).first(static_cast<std::size_t>(n * width)));
  }
  place.written += count;
}

void WeightFile::finish() {
  for (const auto& of : places_) {
    const Place& place = of.second;
    check(place.written == place.elements, ErrorKind::internal, [&] {
      return "of " + of.first + " " + std::to_string(place.written) + " of " +
             std::to_string(place.elements) + " elements were saved";
    });
  }
  file_.finish();
}

}  // namespace plimsoll::runtime::io
