// An rsocket stream against a peer that writes and tells anything, while the program reads and sends. [what
// 1][length 1]...
#include <algorithm>
#include <cstdlib>
#include <vector>

#include "siw_fallback/rsocket.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace accel::siw;
  const RsIdentity id{2, 3, 0x1000, 0x10000};
  RsStream s(id, 4096, 4);
  const RsStream peer({4, 5, 0x1000, 0x10000}, 4096, 4);
  auto connection = peer.connection_data();
  if (size > kRsConnectionData && data[0] & 1) {
    std::copy_n(data, kRsConnectionData, connection.begin());
    data += kRsConnectionData, size -= kRsConnectionData;
  }
  if (s.start(connection) != Violation::none) return 0;
  uint64_t next = id.data_address;
  std::vector<uint8_t> buffer(8192);
  while (size >= 2) {
    const uint8_t what = data[0];
    const size_t n = std::min<size_t>(size - 2, data[1]);
    const Bytes rest(data + 2, n);
    Violation v = Violation::none;
    switch (what % 8) {
      case 0:  // a Write where it belongs
        v = s.on_write(id.data_key, next, rest);
        if (v == Violation::none) {
          next = id.data_address + (next - id.data_address + n) % 4096;
        }
        break;
      case 1:
        v = n >= 12 ? s.on_write(load_be<uint32_t>(rest, 0), load_be<uint64_t>(rest, 4), rest.subspan(12))
                    : v;
        break;
      case 2:
        v = s.on_write(id.entries_key, id.entries_address + (what >> 3), rest);
        break;
      case 3:
        v = s.on_message(rest);
        break;
      case 4:
        s.read(MutableBytes(buffer).first(n * 16), what & 8);
        break;
      case 5:
        while (auto t = s.send_data(n * 100)) {
          if (t->length == 0 || t->length > n * 100 || t->offset + t->length < t->offset) abort();
        }
        break;
      case 6: {
        int control = 0;
        while (s.send_control()) {
          if (++control > 8) abort();
        }
        break;
      }
      default:
        if (what & 8) s.shutdown_write();
        if (what & 16) s.shutdown_read();
        if (what & 32) s.disconnect();
        if (what & 64) s.keepalive();
    }
    if (s.readable() > 4096) abort();
    if (v != Violation::none) return 0;
    data += 2 + n, size -= 2 + n;
  }
  return 0;
}
