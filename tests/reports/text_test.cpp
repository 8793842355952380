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
