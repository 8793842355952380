#include "tests/kernels/operands.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <map>

namespace plimsoll::kernels::test {

Tensor::Tensor(Extents extents, DType type, double value)
    : bytes(static_cast<std::size_t>(storage(Count(extents.elements()), type).value())),
      dtype(type),
      shape(extents) {
  for (std::int64_t i = 0; i < elements(); ++i) set(i, value);
}
Tensor::Tensor(Extents extents, DType type, const std::vector<double>& values)
    : Tensor(extents, type) {
  REQUIRE(static_cast<std::int64_t>(values.size()) == elements());
  for (std::int64_t i = 0; i < elements(); ++i) set(i, values[static_cast<std::size_t>(i)]);
}

namespace {
template <class T>
T load(const std::vector<std::byte>& bytes, std::int64_t i) {
  T value;
  std::memcpy(&value, bytes.data() + static_cast<std::size_t>(i) * sizeof(T), sizeof(T));
  return value;
}
template <class T>
void store(std::vector<std::byte>& bytes, std::int64_t i, T value) {
  std::memcpy(bytes.data() + static_cast<std::size_t>(i) * sizeof(T), &value, sizeof(T));
}
}  // namespace

double Tensor::at(std::int64_t i) const {
  switch (dtype) {
    case DType::fp64:
      return load<double>(bytes, i);
    case DType::fp32:
      return load<float>(bytes, i);
    case DType::bf16:
      return widened(load<Bf16>(bytes, i));
    case DType::fp16:
      return widened(load<Fp16>(bytes, i));
    case DType::int8:
      return load<std::int8_t>(bytes, i);
    case DType::uint8:
      return load<std::uint8_t>(bytes, i);
    case DType::fp8_e4m3:
      return widened(load<E4m3>(bytes, i));
    case DType::fp8_e5m2:
      return widened(load<E5m2>(bytes, i));
    default:
      return load<std::int32_t>(bytes, i);
  }
}

void Tensor::set(std::int64_t i, double value) {
  switch (dtype) {
    case DType::fp64:
      return store(bytes, i, value);
    case DType::fp32:
      return store(bytes, i, static_cast<float>(value));
    case DType::bf16:
      return store(bytes, i, narrowed<Bf16>(static_cast<float>(value)));
    case DType::fp16:
      return store(bytes, i, narrowed<Fp16>(static_cast<float>(value)));
    case DType::int8:
      return store(bytes, i, static_cast<std::int8_t>(value));
    case DType::uint8:
      return store(bytes, i, static_cast<std::uint8_t>(value));
    case DType::fp8_e4m3:
      return store(bytes, i, narrowed<E4m3>(static_cast<float>(value)));
    case DType::fp8_e5m2:
      return store(bytes, i, narrowed<E5m2>(static_cast<float>(value)));
    default:
      return store(bytes, i, static_cast<std::int32_t>(value));
  }
}

std::vector<double> Tensor::values() const {
  std::vector<double> all;
  for (std::int64_t i = 0; i < elements(); ++i) all.push_back(at(i));
  return all;
}

Json goldens(const std::string& family) {
  std::ifstream file(std::string(PLIMSOLL_GOLDEN) + "/kernels/" + family + ".json");
  REQUIRE_MESSAGE(file.good(), "tests/golden/kernels/" << family << ".json cannot be read");
  return Json::parse(file)["cases"];
}

std::vector<double> golden_values(const Json& tensor) {
  if (tensor.contains("values")) return tensor["values"];
  if (tensor.contains("int32")) return tensor["int32"];
  std::vector<double> all = tensor["sixtyfourths"];
  for (double& v : all) v /= 64;
  return all;
}

Tensor golden(const Json& tensor, DType dtype) {
  const std::vector<std::int64_t> lengths = tensor["shape"];
  Extents shape;
  for (const std::int64_t length : lengths)
    shape.axes.at(static_cast<std::size_t>(shape.rank++)) = length;
  return {shape, tensor.contains("int32") ? DType::int32 : dtype, golden_values(tensor)};
}

double deviation(const std::vector<double>& actual, const std::vector<double>& expected) {
  if (actual.size() != expected.size()) return std::numeric_limits<double>::infinity();
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    difference += (actual[i] - expected[i]) * (actual[i] - expected[i]);
    norm += expected[i] * expected[i];
  }
  if (!std::isfinite(difference)) return std::numeric_limits<double>::infinity();
  if (difference == 0) return 0;
  return norm == 0 ? std::sqrt(difference) : std::sqrt(difference / norm);
}
double deviation(const Tensor& actual, const Json& expected) {
  return deviation(actual.values(), golden_values(expected));
}

void record(const char* what, DType dtype, double deviation) {
  static std::map<std::string, double> worst;
  static const bool wanted = std::getenv("PLIMSOLL_DEVIATIONS") != nullptr;
  if (!wanted) return;
  double& w = worst[std::string(doctest::getContextOptions()->currentTest->m_name) + ": " + what +
                    " " + std::string(name_of(dtype))];
  if (deviation <= w) return;
  w = deviation;
  std::printf("%s %.2g\n",
              (std::string(doctest::getContextOptions()->currentTest->m_name) + ": " + what + " " +
               std::string(name_of(dtype)))
                  .c_str(),
              w);
}

void for_goldens(const std::string& family, const std::function<void(const Json&, DType)>& visit) {
  const Json cases = goldens(family);
  REQUIRE(!cases.empty());
  for (const Json& c : cases)
    for (const DType dtype : kStorage) {
      const std::string name = c["name"];
      CAPTURE(name);
      CAPTURE(name_of(dtype));
      visit(c, dtype);
    }
}

std::vector<double> drawn(std::int64_t n, std::uint64_t seed) {
  std::vector<double> all;
  for (std::int64_t i = 0; i < n; ++i) {
    const Philox random = random_block({seed, 0, 0}, static_cast<std::uint64_t>(i));
    all.push_back((static_cast<double>(random[0] % 257) - 128) / 64);
  }
  return all;
}

std::vector<double> slopes(const Tensor& x, const Tensor& d_y,
                           const std::function<Tensor(const Tensor&)>& y, double step) {
  const auto value = [&](const Tensor& at) {
    const Tensor result = y(at);
    REQUIRE(result.elements() == d_y.elements());
    double sum = 0;
    for (std::int64_t i = 0; i < d_y.elements(); ++i) sum += d_y.at(i) * result.at(i);
    return sum;
  };
  std::vector<double> all;
  for (std::int64_t i = 0; i < x.elements(); ++i) {
    Tensor up = x, down = x;
    up.set(i, x.at(i) + step);
    down.set(i, x.at(i) - step);
    all.push_back((value(up) - value(down)) / (2 * step));
  }
  return all;
}

}  // namespace plimsoll::kernels::test
