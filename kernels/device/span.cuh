// How device code touches memory: eight elements of any storage dtype with one or two 16-byte
// accesses, widened to fp32 and rounded once.
//
// The dtype is a field and not a template parameter: it is the same for all threads, so a branch on
// it costs an instruction in code that waits for memory, and a kernel with five operands is one
// kernel, not 243.
#pragma once

#include "kernels/device/platform.cuh"

namespace plimsoll::kernels::device {

enum class Storage : std::int32_t { fp32, bf16, fp16 };

struct Span {
  void* data = nullptr;
  Storage storage = Storage::fp32;
};

// Elements that one access of a thread covers.
inline constexpr int kVector = 8;

// Bits of eight elements, as fetched: widening is a second step, so that the loads of all operands
// are under way before the first is waited for.
struct Raw {
  uint4 low, high;  // high: only fp32
};

// Element `i` on; the address is a multiple of 16 bytes.
__device__ __forceinline__ Raw fetch(const Span& s, std::int64_t i) {
  Raw raw{};
  if (s.storage == Storage::fp32) {
    const uint4* at = reinterpret_cast<const uint4*>(static_cast<const float*>(s.data) + i);
    raw.low = at[0];
    raw.high = at[1];
  } else {
    raw.low = *reinterpret_cast<const uint4*>(static_cast<const Bf16*>(s.data) + i);
  }
  return raw;
}

template <class T>
__device__ __forceinline__ float half_word(std::uint32_t word, int which) {
  return wide(T{static_cast<std::uint16_t>(which == 0 ? word & 0xffffu : word >> 16)});
}

__device__ __forceinline__ void widen(const Span& s, const Raw& raw, float* to) {
  const std::uint32_t low[4] = {raw.low.x, raw.low.y, raw.low.z, raw.low.w};
  const std::uint32_t high[4] = {raw.high.x, raw.high.y, raw.high.z, raw.high.w};
  if (s.storage == Storage::fp32) {
    for (int e = 0; e < 4; ++e) {
      to[e] = std::bit_cast<float>(low[e]);
      to[4 + e] = std::bit_cast<float>(high[e]);
    }
  } else if (s.storage == Storage::bf16) {
    for (int e = 0; e < kVector; ++e) to[e] = half_word<Bf16>(low[e / 2], e % 2);
  } else {
    for (int e = 0; e < kVector; ++e) to[e] = half_word<Fp16>(low[e / 2], e % 2);
  }
}

// The same of eight elements that are known to have 16 bits, for kernels that keep many under way:
// half the registers.
__device__ __forceinline__ uint4 fetch_halves(const Span& s, std::int64_t i) {
  return *reinterpret_cast<const uint4*>(static_cast<const Bf16*>(s.data) + i);
}
__device__ __forceinline__ void widen_halves(const Span& s, const uint4& raw, float* to) {
  const std::uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
  if (s.storage == Storage::bf16) {
    for (int e = 0; e < kVector; ++e) to[e] = half_word<Bf16>(words[e / 2], e % 2);
  } else {
    for (int e = 0; e < kVector; ++e) to[e] = half_word<Fp16>(words[e / 2], e % 2);
  }
}

template <class T>
__device__ __forceinline__ uint4 packed_vector(const float* v) {
  return {packed<T>(v[0], v[1]), packed<T>(v[2], v[3]), packed<T>(v[4], v[5]),
          packed<T>(v[6], v[7])};
}

__device__ __forceinline__ void store(const Span& s, std::int64_t i, const float* v) {
  if (s.storage == Storage::fp32) {
    float4* at = reinterpret_cast<float4*>(static_cast<float*>(s.data) + i);
    at[0] = {v[0], v[1], v[2], v[3]};
    at[1] = {v[4], v[5], v[6], v[7]};
  } else {
    *reinterpret_cast<uint4*>(static_cast<Bf16*>(s.data) + i) =
        s.storage == Storage::bf16 ? packed_vector<Bf16>(v) : packed_vector<Fp16>(v);
  }
}

// One element.
__device__ __forceinline__ float load_one(const Span& s, std::int64_t i) {
  if (s.storage == Storage::fp32) return static_cast<const float*>(s.data)[i];
  if (s.storage == Storage::bf16) return wide(static_cast<const Bf16*>(s.data)[i]);
  return wide(static_cast<const Fp16*>(s.data)[i]);
}
__device__ __forceinline__ void store_one(const Span& s, std::int64_t i, float v) {
  if (s.storage == Storage::fp32)
    static_cast<float*>(s.data)[i] = v;
  else if (s.storage == Storage::bf16)
    static_cast<Bf16*>(s.data)[i] = Bf16{static_cast<std::uint16_t>(packed<Bf16>(v, 0))};
  else
    static_cast<Fp16*>(s.data)[i] = Fp16{static_cast<std::uint16_t>(packed<Fp16>(v, 0))};
}

// `n` <= 8 elements from `i` on: by vector where the caller knows the address to be aligned and all
// eight are there. What is missing reads as 0.
__device__ __forceinline__ void load_some(const Span& s, std::int64_t i, int n, bool vectors,
                                          float* to) {
  if (vectors && n == kVector) {
    widen(s, fetch(s, i), to);
  } else {
#pragma unroll
    for (int e = 0; e < kVector; ++e) to[e] = e < n ? load_one(s, i + e) : 0.0f;
  }
}
__device__ __forceinline__ void store_some(const Span& s, std::int64_t i, int n, bool vectors,
                                           const float* v) {
  if (vectors && n == kVector) {
    store(s, i, v);
  } else {
#pragma unroll
    for (int e = 0; e < kVector; ++e)  // a counted loop keeps `v` in registers
      if (e < n) store_one(s, i + e, v[e]);
  }
}

}  // namespace plimsoll::kernels::device
