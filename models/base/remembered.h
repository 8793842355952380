// A bounded memory of answers: of two generations the older is forgotten when the younger is full,
// so that what is asked for again and again stays.
#pragma once

#include <cstddef>
#include <functional>
#include <unordered_map>
#include <utility>

namespace plimsoll {

// Of one thread. At most twice `most` is held: entries, or whatever add() counts them by.
template <class Key, class Value, class Hash = std::hash<Key>>
class Remembered {
 public:
  explicit Remembered(std::size_t most) : most_(most) {}

  // nullptr: not known, or forgotten. Valid until the next call.
  const Value* find(const Key& key) {
    if (const auto at = young_.find(key); at != young_.end()) return &at->second.value;
    const auto at = old_.find(key);
    if (at == old_.end()) return nullptr;
    Entry entry = std::move(at->second);
    old_.erase(at);
    return &add(key, std::move(entry.value), entry.size);
  }

  const Value& add(const Key& key, Value value, std::size_t size = 1) {
    if (held_ + size > most_) {
      old_ = std::move(young_);
      young_.clear();
      held_ = 0;
    }
    held_ += size;
    return (young_[key] = {std::move(value), size}).value;
  }

 private:
  struct Entry {
    Value value;
    std::size_t size = 1;
  };

  std::size_t most_, held_ = 0;  // by the younger
  std::unordered_map<Key, Entry, Hash> young_, old_;
};

}  // namespace plimsoll
