// The name of a workload: equal exactly where two programs were asked about the same thing.
#pragma once

#include <string>
#include <string_view>

namespace plimsoll::reports {

// SHA-256 (FIPS 180-4) in hexadecimal.
std::string sha256(std::string_view text);

// The first 64 bits of the SHA-256 of the canonical text of a workload (keys sorted, no
// whitespace), in hexadecimal. In Python, of a workload without "fingerprint" and model's "name":
// hashlib.sha256(json.dumps(workload, sort_keys=True, ensure_ascii=False,
//                           separators=(",", ":")).encode()).hexdigest()[:16]
std::string fingerprint(std::string_view canonical_workload);

}  // namespace plimsoll::reports
