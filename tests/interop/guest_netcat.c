// A plain program, for librspreload to carry in the guest and for libaccel to carry here: netcat with blocking calls only.
// Debian's own programs serve librspreload badly: its select() sets the bits of its inner descriptors and not of the
// program's (socat as a server never sees its data), it does not know accept4() or epoll, and has no TCP_MAXSEG (iperf3).
// usage: netcat listen|connect ADDRESS PORT send|receive    the file is stdin, or stdout
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static char buffer[100000];

static void need(int good, const char* what) {
  if (good) return;
  perror(what);
  exit(1);
}

static int open_connection(const char* how, const char* address, const char* port) {
  struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((unsigned short)atoi(port))};
  need(inet_pton(AF_INET, address, &a.sin_addr) == 1, "address");
  int s = socket(AF_INET, SOCK_STREAM, 0);
  need(s >= 0, "socket");
  if (strcmp(how, "connect") == 0) {
    need(connect(s, (struct sockaddr*)&a, sizeof a) == 0, "connect");
    return s;
  }
  int on = 1;
  setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  need(bind(s, (struct sockaddr*)&a, sizeof a) == 0, "bind");
  need(listen(s, 1) == 0, "listen");
  int connection = accept(s, NULL, NULL);
  need(connection >= 0, "accept");
  close(s);
  return connection;
}

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  int s = open_connection(argv[1], argv[2], argv[3]);
  int sending = strcmp(argv[4], "send") == 0;
  while (1) {
    ssize_t n = sending ? (ssize_t)fread(buffer, 1, sizeof buffer, stdin) : recv(s, buffer, sizeof buffer, 0);
    need(n >= 0, "recv");
    if (n == 0) break;
    if (!sending) {
      need(fwrite(buffer, 1, (size_t)n, stdout) == (size_t)n, "write");
      continue;
    }
    for (ssize_t at = 0; at < n;) {
      ssize_t sent = send(s, buffer + at, (size_t)(n - at), 0);
      need(sent > 0, "send");
      at += sent;
    }
  }
  // The other end may have more to say than we: wait for its end before closing.
  shutdown(s, SHUT_WR);
  while (sending && recv(s, buffer, sizeof buffer, 0) > 0) {
  }
  close(s);
  return 0;
}
