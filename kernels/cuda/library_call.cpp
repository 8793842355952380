#include "kernels/cuda/library_call.h"

namespace plimsoll::kernels::cuda {

namespace {

// The stored matrix of a row-major view is its transpose in columns.
LibraryMatrix matrix(const ConstColumns& view, bool transposed) {
  const DType dtype = view.tensor.dtype;
  const auto* data = static_cast<const std::byte*>(view.tensor.data);
  return {data + view.first * (bits(dtype) / 8),
          dtype,
          view.width,
          view.rows(),
          view.stride(),
          transposed};
}

std::int64_t alignment_of(std::int64_t so_far, const void* address) {
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  while (at % static_cast<std::uintptr_t>(so_far) != 0) so_far /= 2;
  return so_far;
}

std::string text(const LibraryMatrix& x) {
  return std::string(name_of(x.dtype)) + ":" + std::to_string(x.rows) + "x" +
         std::to_string(x.columns) + "/" + std::to_string(x.stride) + (x.transposed ? "t" : "n");
}

bool multiplies(DType dtype) {
  return dtype == DType::fp32 || dtype == DType::bf16 || dtype == DType::fp16;
}
bool of_8_bits(DType dtype) {
  return dtype == DType::fp8_e4m3 || dtype == DType::fp8_e5m2;
}

// Shorter ones have slow kernels that take no time.
constexpr std::int64_t kLong = 1024;

// What of a length is a multiple of 16 bytes; all of it where it is short.
std::int64_t whole_vectors(std::int64_t length, DType dtype) {
  const std::int64_t vector = 16 / (bits(dtype) / 8);
  return length < kLong ? length : length / vector * vector;
}

// `rows` of the stored matrix from `first` on, or as many columns.
LibraryMatrix rows_from(LibraryMatrix x, std::int64_t first, std::int64_t count) {
  x.data = static_cast<const std::byte*>(x.data) + first * (bits(x.dtype) / 8);
  x.rows = count;
  return x;
}
LibraryMatrix columns_from(LibraryMatrix x, std::int64_t first, std::int64_t count) {
  x.data = static_cast<const std::byte*>(x.data) + first * x.stride * (bits(x.dtype) / 8);
  x.columns = count;
  return x;
}

// Of op(a) · op(b) = d, [m, k] · [k, n]: what is cut along m, n or k.
LibraryPart cut_m(LibraryPart p, std::int64_t first, std::int64_t count) {
  LibraryCall& c = p.call;
  c.a = c.a.transposed ? columns_from(c.a, first, count) : rows_from(c.a, first, count);
  c.d = rows_from(c.d, first, count);
  p.bias_offset += first;
  return p;
}
LibraryPart cut_n(LibraryPart p, std::int64_t first, std::int64_t count) {
  LibraryCall& c = p.call;
  c.b = c.b.transposed ? rows_from(c.b, first, count) : columns_from(c.b, first, count);
  c.d = columns_from(c.d, first, count);
  return p;
}
LibraryPart cut_k(LibraryPart p, std::int64_t first, std::int64_t count) {
  LibraryCall& c = p.call;
  c.a = c.a.transposed ? rows_from(c.a, first, count) : columns_from(c.a, first, count);
  c.b = c.b.transposed ? columns_from(c.b, first, count) : rows_from(c.b, first, count);
  return p;
}

}  // namespace

std::vector<LibraryPart> parts_of(const LibraryCall& call) {
  const DType dtype = call.a.dtype;
  const std::int64_t m = call.d.rows, n = call.d.columns;
  const std::int64_t k = call.a.transposed ? call.a.rows : call.a.columns;
  if (const std::int64_t whole = whole_vectors(m, dtype); whole != m)
    return {cut_m({call}, 0, whole), cut_m({call}, whole, m - whole)};
  if (const std::int64_t whole = whole_vectors(n, dtype); call.b.transposed && whole != n)
    return {cut_n({call}, 0, whole), cut_n({call}, whole, n - whole)};
  const bool in_rows = call.a.transposed || !call.b.transposed;
  if (const std::int64_t whole = whole_vectors(k, dtype); in_rows && whole != k) {
    LibraryPart rest = cut_k({call}, whole, k - whole), most = cut_k({call}, 0, whole);
    rest.call.bias = false;
    most.call.accumulate = true;
    return {rest, most};
  }
  return {{call}};
}

LibraryCall library_call(const Gemm& p, const Columns& c, const TensorView& workspace, bool tf32) {
  LibraryCall call{
      .a = matrix(p.b.view, p.b.transposed),
      .b = matrix(p.a.view, p.a.transposed),
      .d = matrix(c, false),
      .bias = static_cast<bool>(p.bias),
      .accumulate = p.accumulate,
      .tf32 = tf32 && p.a.view.tensor.dtype == DType::fp32,
      .scaled = p.scaled(),
      .fast_sums = p.fast_sums,
      .workspace_bytes =
          workspace ? storage(Count(workspace.elements()), workspace.dtype).value() : 0};
  for (const void* address : {call.a.data, call.b.data, call.d.data, p.bias.data})
    call.alignment = alignment_of(call.alignment, address);
  return call;
}

std::string LibraryCall::key() const {
  return "a=" + text(a) + " b=" + text(b) + " d=" + text(d) + (bias ? " bias" : "") +
         (accumulate ? " beta=1" : " beta=0") + (tf32 ? " tf32" : "") + (scaled ? " scaled" : "") +
         (fast_sums ? " fast" : "") + " align=" + std::to_string(alignment) +
         " workspace=" + std::to_string(workspace_bytes);
}

std::string refusal(const LibraryCall& call, const Gemm& p) {
  const DType operand = call.a.dtype, result = call.d.dtype;
  const auto name = [](DType dtype) { return std::string(name_of(dtype)); };
  if (p.k == 0) return "nothing to add up (k = 0)";
  const bool eight = of_8_bits(operand) && of_8_bits(call.b.dtype) && call.scaled &&
                     (operand == DType::fp8_e4m3 || call.b.dtype == DType::fp8_e4m3);
  if (!eight && (!multiplies(operand) || operand != call.b.dtype))
    return "operands of " + name(call.b.dtype) + " and " + name(operand);
  if (eight ? !multiplies(result) : result != operand && result != DType::fp32)
    return "a result of " + name(result) + " from operands of " + name(operand);
  if (p.bias && p.bias.dtype != result)
    return "a bias of " + name(p.bias.dtype) + " for a result of " + name(result);
  return {};
}

}  // namespace plimsoll::kernels::cuda
