#include "runtime/io/float_storage.h"

#include <cstring>
#include <string>

#include "kernels/number.h"

namespace plimsoll::runtime::io {

namespace {
using kernels::Bf16;
using kernels::Fp16;

// Data of a file may begin at any byte.
template <class From, class To>
void convert_as(const std::byte* from, std::byte* into, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    From x;
    std::memcpy(&x, from + i * static_cast<std::int64_t>(sizeof x), sizeof x);
    const To y = kernels::narrowed<To>(kernels::widened(x));
    std::memcpy(into + i * static_cast<std::int64_t>(sizeof y), &y, sizeof y);
  }
}

template <class From>
void convert_from(const std::byte* from, DType type, std::byte* into, std::int64_t count) {
  if (type == DType::fp32) return convert_as<From, float>(from, into, count);
  if (type == DType::bf16) return convert_as<From, Bf16>(from, into, count);
  convert_as<From, Fp16>(from, into, count);
}
}  // namespace

std::optional<DType> stored_dtype(std::string_view name) {
  if (name == "F32") return DType::fp32;
  if (name == "BF16") return DType::bf16;
  if (name == "F16") return DType::fp16;
  return std::nullopt;
}

std::string_view stored_name(DType dtype) {
  if (dtype == DType::fp32) return "F32";
  if (dtype == DType::bf16) return "BF16";
  check(dtype == DType::fp16, ErrorKind::internal,
        [&] { return "weights of type " + std::string(name_of(dtype)); });
  return "F16";
}

void convert(kernels::ConstTensorView from, kernels::TensorView into) {
  const std::int64_t count = from.elements();
  check(count == into.elements(), ErrorKind::internal, "a conversion keeps the number of elements");
  (void)stored_name(from.dtype);
  (void)stored_name(into.dtype);
  if (count == 0) return;  // of views that point nowhere
  const auto* source = static_cast<const std::byte*>(from.data);
  auto* target = static_cast<std::byte*>(into.data);
  if (from.dtype == into.dtype)
    std::memcpy(target, source,
                static_cast<std::size_t>(storage(Count(count), from.dtype).value()));
  else if (from.dtype == DType::fp32)
    convert_from<float>(source, into.dtype, target, count);
  else if (from.dtype == DType::bf16)
    convert_from<Bf16>(source, into.dtype, target, count);
  else
    convert_from<Fp16>(source, into.dtype, target, count);
}

}  // namespace plimsoll::runtime::io
