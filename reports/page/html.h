// HTML in pieces. Every text that comes from a document goes through xml_escaped().
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "models/base/quantity.h"
#include "reports/page/timeline_svg.h"

namespace plimsoll::reports {

class Html {
 public:
  // `level` 1 to 3.
  void heading(int level, std::string_view text);
  void paragraph(std::string_view text, std::string_view style = "");
  void code(std::string_view text);
  void list(const std::vector<std::string>& items);
  // What is HTML already.
  void raw(std::string_view html) { out_ += html; }
  std::string take() { return std::move(out_); }

 private:
  std::string out_;
};

struct Cell {
  std::string html;
  bool number = false;  // right-aligned, digits of one width
};
Cell text_cell(std::string_view text);
Cell number_cell(std::string_view text);
Cell bytes_cell(Bytes bytes);

// A table with a header for each column; its columns keep their places on a narrow screen and the
// table scrolls by itself.
class Table {
 public:
  Table(std::string_view caption, std::initializer_list<Cell> header);
  void row(const std::vector<Cell>& cells, bool total = false);
  std::string take();
  bool empty() const { return rows_ == 0; }

 private:
  std::string out_;
  std::size_t rows_ = 0;
};

// Parts of a whole side by side, with a mark where the limit is; `whole` and `limit` > 0.
struct BarPart {
  double value = 0;
  std::string colour, name;
};
std::string bar_html(const std::vector<BarPart>& parts, double whole, double limit = 0);

}  // namespace plimsoll::reports
