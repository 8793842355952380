#include "models/storages.h"

#include <algorithm>

namespace plimsoll::models {

const PackedStorage* find_packed_storage(std::string_view name) {
  const auto* found = std::ranges::find(kPackedStorages, name, &PackedStorage::name);
  return found == kPackedStorages.end() ? nullptr : found;
}

std::string packed_storage_names() {
  std::string names;
  for (const PackedStorage& storage : kPackedStorages)
    if (storage.refusal.empty()) names += (names.empty() ? "" : ", ") + std::string(storage.name);
  return names;
}

std::vector<PackedTensor> packed_tensors(const PackedStorage& of, Count values, DType held_in) {
  const std::int64_t n = values.value(), blocks = ceil_divide(n, of.block);
  // quantize_4bit, cuda: (n + 1) // (2 * itemsize) elements.
  const std::int64_t packed = (n + 1) / (bits(held_in) / of.bits);
  std::vector<PackedTensor> all{{"", Count(packed), held_in},
                                {".absmax", Count(blocks), of.scale},
                                {".quant_map", Count(of.table), DType::fp32}};
  if (!of.doubly_quantized()) return all;
  all.push_back({".nested_absmax", Count(ceil_divide(blocks, of.scale_block)), DType::fp32});
  all.push_back({".nested_quant_map", Count(of.scale_table), DType::fp32});
  all.push_back({".nested_offset", Count(of.offsets), DType::fp32});
  return all;
}

bool kbit_prepared(const Strategy& s) {
  if (!s.quantize) return false;
  const bool usual = s.stack != Stack::plimsoll && s.data.zero < 2 && is_mixed(s.precision);
  return s.quantize->kbit_prep.value_or(usual);
}

}  // namespace plimsoll::models
