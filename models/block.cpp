#include "models/block.h"

#include <mutex>
#include <string>
#include <unordered_set>

#include "models/base/error.h"

namespace plimsoll::models {

const char* interned(std::string_view text) {
  static std::mutex mutex;
  static std::unordered_set<std::string> texts;  // its nodes stay where they are
  const std::lock_guard lock(mutex);
  return texts.emplace(text).first->c_str();
}

ValueList::ValueList(std::initializer_list<ValueId> ids) {
  for (const ValueId id : ids) push_back(id);
}

void ValueList::push_back(ValueId id) {
  check(size_ < ids_.size(), ErrorKind::internal, [] { return "a node of more than 8 values"; });
  ids_[size_++] = id;
}

ValueId Block::output() const {
  for (std::size_t i = nodes.size(); i-- > 0;)
    if (!nodes[i].out.empty()) return nodes[i].out[0];
  return kNoValue;
}

const Module* Block::find(std::string_view name) const {
  for (const Module& module : modules)
    if (name == module.name) return &module;
  return nullptr;
}

}  // namespace plimsoll::models
