// Strangers' texts: their encoding, and how much of them a message shows. Releases as texts.
#include <doctest/doctest.h>

#include <vector>

#include "models/base/nearest.h"
#include "models/base/utf8.h"
#include "models/stack_versions.h"

using namespace plimsoll;

// RFC 3629, section 4: the table of well-formed sequences, both ends of each of its ranges.
TEST_CASE("a sequence of UTF-8 is as long as the standard says, and not one that it leaves out") {
  struct Row {
    std::string_view text;
    std::size_t length;
  };
  for (const Row& row : std::initializer_list<Row>{{{"\x00z", 2}, 1},
                                                   {"\x7f", 1},
                                                   {"\x80", 0},
                                                   {"\xbf", 0},
                                                   {"\xc1\xbf", 0},
                                                   {"\xc2\x80", 2},
                                                   {"\xdf\xbf", 2},
                                                   {"\xdf\xc0", 0},
                                                   {"\xdf\x7f", 0},
                                                   {"\xe0\x9f\xbf", 0},
                                                   {"\xe0\xa0\x80", 3},
                                                   {"\xe1\x80\x80", 3},
                                                   {"\xec\xbf\xbf", 3},
                                                   {"\xed\x9f\xbf", 3},
                                                   {"\xed\xa0\x80", 0},
                                                   {"\xee\x80\x80", 3},
                                                   {"\xef\xbf\xbf", 3},
                                                   {"\xef\xbf", 0},
                                                   {"\xef\xbfz", 0},
                                                   {"\xefz\xbf", 0},
                                                   {"\xf0\x8f\xbf\xbf", 0},
                                                   {"\xf0\x90\x80\x80", 4},
                                                   {"\xf1\x80\x80\x80", 4},
                                                   {"\xf3\xbf\xbf\xbf", 4},
                                                   {"\xf4\x8f\xbf\xbf", 4},
                                                   {"\xf4\x90\x80\x80", 0},
                                                   {"\xf4\x8f\xbf", 0},
                                                   {"\xf3\xbf\xbf\x7f", 0},
                                                   {"\xf5\x80\x80\x80", 0},
                                                   {"\xff", 0}}) {
    CAPTURE(row.text);
    CHECK(utf8_sequence(row.text) == row.length);
    CHECK((row.length == 0 || utf8_sequence(std::string(row.text) + "\xbf") == row.length));
  }
}

TEST_CASE("a long text is shown by its beginning, and no character is cut in two") {
  const std::string sixty(60, 'x');
  CHECK(shortened("") == "");
  CHECK(shortened(sixty) == sixty);
  CHECK(shortened(sixty + "x") == std::string(57, 'x') + "...");
  CHECK(shortened(std::string(101, 'y'), 100) == std::string(97, 'y') + "...");
  CHECK(shortened(std::string(100, 'y'), 100) == std::string(100, 'y'));
  // Two, three and four bytes a character: 57 fall into the middle of one.
  const auto many = [](const std::string& one, int count) {
    std::string out;
    for (int i = 0; i < count; ++i) out += one;
    return out;
  };
  CHECK(shortened(many("ä", 31)) == many("ä", 28) + "...");
  CHECK(shortened("z" + many("ä", 30)) == "z" + many("ä", 28) + "...");
  CHECK(shortened("zz" + many("€", 20)) == "zz" + many("€", 18) + "...");
  CHECK(shortened("zzz" + many("😀", 20)) == "zzz" + many("😀", 13) + "...");
  // Nothing but continuation bytes: there is no character to keep.
  CHECK(shortened(std::string(61, '\x80')) == "...");
}

TEST_CASE("names are compared by their first 256 letters, whatever their case") {
  const auto of = [](std::string_view name, std::vector<std::string_view> names) {
    return nearest(name, names);
  };
  const std::string name(256, 'a');
  CHECK(of(name + std::string(1000, 'z'), {name}) == name);
  CHECK(of("abcd", {"BACD"}) == "BACD");
  CHECK(of("abcd", {"xcbd", "abdc"}) == "abdc");
  CHECK(of("abcdef", {"bacdfe"}) == "bacdfe");  // two swaps
  CHECK(of("xab", {"xba"}) == "xba");
  CHECK(of("aab", {"cdaab"}) == "cdaab");
}

TEST_CASE("a release is two or three numbers") {
  using models::Release;
  using models::release_from;
  CHECK(release_from("4.45") == Release{4, 45, 0});
  CHECK(release_from("4.45.2") == Release{4, 45, 2});
  CHECK(release_from("0.0.10") == Release{0, 0, 10});
  for (const char* text : {"", "4", "4.", "4.45.", "4.45.2.1", "4.45.2 ", "4,45", "v4.45", "4.-1",
                           "-4.5", "4.45.2rc1", "99999999999.1"})
    CHECK_MESSAGE(!release_from(text), text);
  CHECK(text_of(Release{4, 5, 60}) == "4.5.60");
  CHECK(Release{4, 45, 2} < Release{4, 46, 0});
}
