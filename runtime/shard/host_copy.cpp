#include "runtime/shard/host_copy.h"

#include <vector>

#include "kernels/number.h"
#include "runtime/parallel.h"

namespace plimsoll::runtime::shard {

namespace {

using kernels::Bf16;
using kernels::Fp16;

constexpr std::int64_t kLeast = 1 << 18;  // values that are worth a thread

void expect_as_many(std::int64_t elements, std::size_t values) {
  check(elements == static_cast<std::int64_t>(values), ErrorKind::internal,
        "as many values as elements");
}

template <class T>
float value_of(T stored) {
  if constexpr (std::is_same_v<T, std::uint8_t>)
    return stored;
  else
    return kernels::widened(stored);
}

template <class T>
void write_as(Device& device, std::span<const float> values, kernels::TensorView to) {
  std::vector<T> narrow(values.size());
  in_parts(std::ssize(values), kLeast, [&](std::int64_t first, std::int64_t count) {
    for (auto i = static_cast<std::size_t>(first); i < static_cast<std::size_t>(first + count); ++i)
      narrow[i] = kernels::narrowed<T>(values[i]);
  });
  device.copy_in(to.data, narrow.data(), storage(Count(to.elements()), to.dtype));
}

template <class T>
void read_as(Device& device, kernels::ConstTensorView from, std::span<float> values) {
  std::vector<T> narrow(values.size());
  device.copy_out(narrow.data(), from.data, storage(Count(from.elements()), from.dtype));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = value_of(narrow[i]);
}

}  // namespace

void write_values(Device& device, std::span<const float> values, kernels::TensorView to) {
  expect_as_many(to.elements(), values.size());
  if (to.dtype == DType::fp32)
    device.copy_in(to.data, values.data(), storage(Count(to.elements()), to.dtype));
  else if (to.dtype == DType::bf16)
    write_as<Bf16>(device, values, to);
  else if (to.dtype == DType::fp16)
    write_as<Fp16>(device, values, to);
  else
    fail(ErrorKind::internal, "values are not stored as " + std::string(name_of(to.dtype)));
}

void read_values(Device& device, kernels::ConstTensorView from, std::span<float> values) {
  expect_as_many(from.elements(), values.size());
  if (from.dtype == DType::fp32)
    device.copy_out(values.data(), from.data, storage(Count(from.elements()), from.dtype));
  else if (from.dtype == DType::bf16)
    read_as<Bf16>(device, from, values);
  else if (from.dtype == DType::fp16)
    read_as<Fp16>(device, from, values);
  else if (from.dtype == DType::uint8)
    read_as<std::uint8_t>(device, from, values);
  else
    fail(ErrorKind::internal, "values are not stored as " + std::string(name_of(from.dtype)));
}

}  // namespace plimsoll::runtime::shard
