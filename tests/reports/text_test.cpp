#include "reports/text.h"

#include <doctest/doctest.h>

using namespace plimsoll;
using namespace plimsoll::reports;

TEST_CASE("bytes are shown with three figures that count") {
  CHECK(bytes_text(0_B) == "0 B");
  CHECK(bytes_text(512_B) == "512 B");
  CHECK(bytes_text(1536_B) == "1.50 KiB");
  CHECK(bytes_text(Bytes(22870000000)) == "21.3 GiB");  // 22.87e9 / 2^30 = 21.299
  CHECK(bytes_text(80_GiB) == "80.0 GiB");
  CHECK(bytes_text(1000_GiB) == "1000 GiB");
  CHECK(bytes_text(-(3_MiB)) == "-3.00 MiB");
}

TEST_CASE("a figure that rounds up to the next unit is shown in it") {
  CHECK(bytes_text(Bytes((1LL << 20) - 1)) == "1.00 MiB");
  CHECK(bytes_text(Bytes(10 * 1024 - 1)) == "10.0 KiB");  // 9.999 KiB
}

TEST_CASE("model states are shown as the ZeRO paper prints them") {
  CHECK(decimal_bytes_text(Bytes(120'000'000'000)) == "120.0 GB");
  CHECK(decimal_bytes_text(Bytes(31'406'250'000)) == "31.41 GB");
  CHECK(decimal_bytes_text(Bytes(16'640'625'000)) == "16.64 GB");
  CHECK(decimal_bytes_text(Bytes(1'875'000'000)) == "1.875 GB");
}

TEST_CASE("counts are grouped in thousands") {
  CHECK(grouped(Count(0)) == "0");
  CHECK(grouped(Count(999)) == "999");
  CHECK(grouped(Count(1000)) == "1,000");
  CHECK(grouped(Count(8030261248)) == "8,030,261,248");
  CHECK(short_count(Count(8030261248)) == "8.03 B");
}

TEST_CASE("text is cut by columns and not by bytes") {
  const Terminal utf8{.utf8 = true};
  CHECK(width("größe…") == 6);
  CHECK(clipped("größe", 5, utf8) == "größe");
  CHECK(clipped("größer", 5, utf8) == "größ…");
  CHECK(clipped("abc", 2, Terminal{.utf8 = false}) == "a~");
  CHECK(right("ö", 3) == "  ö");
}

TEST_CASE("a bar is as long as its share and shows what is not nothing") {
  const Terminal utf8{.utf8 = true}, ascii{.utf8 = false};
  CHECK(bar(0, 10, utf8) == "");
  CHECK(bar(1, 4, utf8) == "████");
  CHECK(bar(7, 4, utf8) == "████");
  CHECK(bar(0.0001, 4, utf8) == "▏");
  CHECK(bar(0.5, 4, ascii) == "##");
  CHECK(bar(0.0001, 4, ascii) == "#");
}

TEST_CASE("lines break at blanks") {
  const std::vector<std::string> lines = wrapped("one two three four", 9, "  ");
  CHECK(lines == std::vector<std::string>{"one two", "  three", "  four"});
}

TEST_CASE("a name from a file cannot command the terminal") {
  CHECK(printable("größe…") == "größe…");
  CHECK(printable("a\x1b[31mb\n\x07") == "a?[31mb??");
  CHECK(printable("\xff\xC2\x9B"
                  "2J") == "??2J");
}

// 1023.5 of a unit would be shown as 1024: it is 1.00 of the next. 9.995 has three figures as
// 10.0, 99.95 as 100.
TEST_CASE("every unit begins where three figures of the one before are not enough") {
  CHECK(bytes_text(1_B) == "1 B");
  CHECK(bytes_text(1023_B) == "1023 B");
  CHECK(bytes_text(1024_B) == "1.00 KiB");
  CHECK(bytes_text(Bytes(10235)) == "10.0 KiB");  // 9.9951
  CHECK(bytes_text(Bytes(10230)) == "9.99 KiB");  // 9.9902
  CHECK(bytes_text(Bytes(102'349)) == "100 KiB");  // 99.9502
  CHECK(bytes_text(Bytes(102'348)) == "99.9 KiB");  // 99.9492
  CHECK(bytes_text(Bytes(1'048'063)) == "1023 KiB");  // 1023.499
  CHECK(bytes_text(Bytes(1'048'064)) == "1.00 MiB");  // 1023.5
  CHECK(bytes_text(1_MiB) == "1.00 MiB");
  CHECK(bytes_text(1_GiB) == "1.00 GiB");
  CHECK(bytes_text(1024_GiB) == "1.00 TiB");
  CHECK(bytes_text(Bytes(std::int64_t{1} << 50)) == "1.00 PiB");
  CHECK(bytes_text(Bytes(std::int64_t{1} << 60)) == "1024 PiB");  // there is no next
  CHECK(bytes_text(-1_B) == "-1 B");
  CHECK(bytes_text(-1536_B) == "-1.50 KiB");
  CHECK(decimal_bytes_text(Bytes(999)) == "999 B");
  CHECK(decimal_bytes_text(Bytes(1'000)) == "1.000 KB");
  CHECK(decimal_bytes_text(Bytes(999'949)) == "999.9 KB");
  CHECK(decimal_bytes_text(Bytes(999'950)) == "1.000 MB");
  CHECK(decimal_bytes_text(Bytes(9'999'600)) == "10.00 MB");
  CHECK(decimal_bytes_text(Bytes(1'000'000'000'000)) == "1.000 TB");
  CHECK(short_count(Count(0)) == "0 ");
  CHECK(short_count(Count(124'439'808)) == "124 M");
  CHECK(short_count(Count(1'234)) == "1.23 K");
  CHECK(short_count(Count(15'000'000'000'000)) == "15.0 T");
  CHECK(grouped(Count(-1000)) == "-1,000");
  CHECK(grouped(Count(-999)) == "-999");
  CHECK(grouped(Count(100'000)) == "100,000");
  CHECK(grouped(Count(1'000'000)) == "1,000,000");
}

TEST_CASE("columns are filled with blanks, and text that is too wide keeps all of itself") {
  CHECK(padded("ö", 3) == "ö  ");
  CHECK(padded("abc", 3) == "abc");
  CHECK(padded("abcd", 3) == "abcd");
  CHECK(right("abc", 3) == "abc");
  CHECK(right("abcd", 3) == "abcd");
  CHECK(right("", 2) == "  ");
  CHECK(width("") == 0);
  CHECK(clipped("abc", 3, {}) == "abc");
  CHECK(clipped("abcd", 3, {}) == "ab…");
  CHECK(clipped("abcd", 1, {}) == "…");
  CHECK(clipped("abcd", 0, {}) == "");
}

TEST_CASE("a colour is an escape sequence around text, and only where a terminal has colours") {
  const Terminal with{.colour = true};
  CHECK(coloured("a", Colour::red, with) == "\x1b[31;1ma\x1b[0m");
  CHECK(coloured("a", Colour::green, with) == "\x1b[32;1ma\x1b[0m");
  CHECK(coloured("a", Colour::yellow, with) == "\x1b[33;1ma\x1b[0m");
  CHECK(coloured("a", Colour::blue, with) == "\x1b[34ma\x1b[0m");
  CHECK(coloured("a", Colour::faint, with) == "\x1b[2ma\x1b[0m");
  CHECK(coloured("a", Colour::none, with) == "a");
  CHECK(coloured("", Colour::red, with) == "");
  CHECK(coloured("a", Colour::red, {}) == "a");
}

TEST_CASE("a bar has eighths of a column, rounded") {
  for (const auto& [eighths, end] :
       {std::pair(1, "▏"), {2, "▎"}, {3, "▍"}, {4, "▌"}, {5, "▋"}, {6, "▊"}, {7, "▉"}, {8, "█"}}) {
    CHECK(bar(eighths / 8.0, 1, {}) == end);
    CHECK(bar((8 + eighths) / 16.0, 2, {}) == std::string("█") + end);
  }
  CHECK(bar(0.4 / 8, 1, {}) == "▏");
  CHECK(bar(1.4 / 8, 1, {}) == "▏");
  CHECK(bar(1.6 / 8, 1, {}) == "▎");
  CHECK(bar(-0.5, 4, {}) == "");
  CHECK(bar(0.6, 4, Terminal{.utf8 = false}) == "##");  // 2.4
  CHECK(bar(0.65, 4, Terminal{.utf8 = false}) == "###");  // 2.6
}

TEST_CASE("a line takes as many words as fit, and a word that is too long stands alone") {
  using Lines = std::vector<std::string>;
  CHECK(wrapped("", 9, "  ") == Lines{});
  CHECK(wrapped("ab cd", 5, "  ") == Lines{"ab cd"});
  CHECK(wrapped("ab cde", 5, "  ") == Lines{"ab", "  cde"});
  CHECK(wrapped("a bbbbbbbbb c", 5, " ") == Lines{"a", " bbbbbbbbb", " c"});
  CHECK(wrapped("ab cd ef", 5, " ") == Lines{"ab cd", " ef"});
  CHECK(wrapped("ää öö üü", 5, "") == Lines{"ää öö", "üü"});  // columns, not bytes
}

// ECMA-48: C0 is 00 … 1F and 7F, C1 is 80 … 9F, in UTF-8 C2 80 … C2 9F.
TEST_CASE("every control character is a question mark, and what stands beside them is not") {
  CHECK(printable(std::string("\0\x1f ", 3)) == "?? ");
  CHECK(printable("~\x7f") == "~?");
  CHECK(printable("\xc2\x80\xc2\x9f") == "??");
  CHECK(printable("\xc2\xa0\xc2\xa1") == "\xc2\xa0\xc2\xa1");
  CHECK(printable("\xc3\x80") == "\xc3\x80");  // À
  CHECK(printable("\x80") == "?");
  CHECK(printable("\xe2\x80") == "??");  // cut short
}
