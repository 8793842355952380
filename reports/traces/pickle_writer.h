// Python's pickle, protocol 2, as far as dictionaries, lists, texts, integers, booleans and None
// go: nothing in it can run code. Only opcodes that PyTorch's web viewer reads
// (torch/utils/viz/MemoryViz.js, `unpickle`); what they mean: Lib/pickletools.py.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace plimsoll::reports {

// Calls must nest as in JsonWriter: inside a dictionary a key before each value.
class PickleWriter {
 public:
  explicit PickleWriter(std::string& out);
  void finish();

  void begin_dict();
  void end_dict();
  void begin_list();
  void end_list();
  void key(std::string_view name);  // written out once, then named by number
  void value(std::int64_t number);
  void value(std::string_view text);  // what is no valid or printable text is replaced
  void value(const char* text) { value(std::string_view(text)); }  // else it would be a bool
  void value(bool truth);
  void none();

  template <class T>
  void member(std::string_view name, const T& v) {
    key(name);
    value(v);
  }
  void member(std::string_view name, const char* v) {
    key(name);
    value(v);
  }

 private:
  void item();
  void raw_text(std::string_view text);

  std::string& out_;
  std::map<std::string, std::uint8_t, std::less<>> known_;
  std::vector<std::int64_t> items_;  // of each open list; -1: a dictionary
};

}  // namespace plimsoll::reports
