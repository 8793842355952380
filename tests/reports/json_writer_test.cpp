#include "reports/json_writer.h"

#include <doctest/doctest.h>

#include <limits>

#include "reports/fingerprint.h"

using namespace plimsoll;
using reports::JsonWriter;

namespace {
std::string number(double value) {
  return reports::number_text(value);
}
}  // namespace

TEST_CASE("doubles are written as Python writes them") {
  // python3 -c 'for x in (...): print(repr(x))'
  CHECK(number(0.0) == "0.0");
  CHECK(number(2.0) == "2.0");
  CHECK(number(-2.5) == "-2.5");
  CHECK(number(0.1) == "0.1");
  CHECK(number(0.0001) == "0.0001");
  CHECK(number(0.00001) == "1e-05");
  CHECK(number(1e15) == "1000000000000000.0");
  CHECK(number(1e16) == "1e+16");
  CHECK(number(989.4e12) == "989400000000000.0");
}

TEST_CASE("what JSON has no word for is null") {
  CHECK(number(std::numeric_limits<double>::quiet_NaN()) == "null");
  CHECK(number(std::numeric_limits<double>::infinity()) == "null");
  CHECK(number(-std::numeric_limits<double>::infinity()) == "null");
}

TEST_CASE("strings are escaped, and bytes that are no UTF-8 are replaced") {
  CHECK(reports::quoted("a\"b\\c\n\t\x01") == R"("a\"b\\c\n\t\u0001")");
  CHECK(reports::quoted("größe") == "\"größe\"");
  CHECK(reports::quoted("\xff") == "\"\xEF\xBF\xBD\"");
  CHECK(reports::quoted("\xC0\xAF") == "\"\xEF\xBF\xBD\xEF\xBF\xBD\"");  // overlong '/'
  CHECK(reports::quoted("\xE2\x82") == "\"\xEF\xBF\xBD\xEF\xBF\xBD\"");  // cut short
  CHECK(reports::quoted("\xED\xA0\x80").find('\xED') == std::string::npos);  // a surrogate
}

TEST_CASE("compact documents hold no blanks, pretty ones break lines where they were told to") {
  const auto write = [](JsonWriter::Style style) {
    std::string text;
    JsonWriter json(text, style);
    json.begin_object();
    json.member("a", 1);
    json.key("b");
    json.begin_array(JsonWriter::Layout::line);
    json.value(true);
    json.begin_object();
    json.member("c", nullptr);
    json.end_object();
    json.end_array();
    json.key("d");
    json.begin_object();
    json.end_object();
    json.end_object();
    return text;
  };
  CHECK(write(JsonWriter::Style::compact) == R"({"a":1,"b":[true,{"c":null}],"d":{}})");
  CHECK(write(JsonWriter::Style::pretty) ==
        "{\n  \"a\": 1,\n  \"b\": [true, {\"c\": null}],\n  \"d\": {}\n}");
}

TEST_CASE("a value keeps its type: a bool is no number, an absent one is null") {
  std::string text;
  JsonWriter json(text, JsonWriter::Style::compact);
  json.begin_array();
  json.value(Bytes(5));
  json.value(std::optional<Bytes>());
  json.value(std::optional<bool>(false));
  json.value("x");
  json.value(std::numeric_limits<std::int64_t>::max());
  json.end_array();
  CHECK(text == R"([5,null,false,"x",9223372036854775807])");
}

TEST_CASE("SHA-256 gives the digests of FIPS 180-2, appendix B") {
  CHECK(reports::sha256("abc") ==
        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(reports::sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq") ==
        "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  CHECK(reports::sha256(std::string(1'000'000, 'a')) ==
        "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  CHECK(reports::sha256("") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
}
