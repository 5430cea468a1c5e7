// Ways into a live connection that are not the socket calls themselves: streams, system calls by number,
// offsets, descriptors closed past the library, and processes made and ended in the rarer ways.
#include <aio.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <linux/fs.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>

#include <atomic>
#include <thread>

#include "posix/echo.h"
#include "posix/ring.h"

using namespace posix_test;  // NOLINT: a test program

namespace {

// Calls the port that it is told, says a line, and tells what came.
FAR(caller) {
  Fd fd = connect_to(there(static_cast<uint16_t>(near.number())));
  write_all(fd, "hello\n");
  std::string all = read_to_end(fd);
  for (char& c : all)
    if (c == '\n') c = '|';
  near.say(all);
}

// Accepts, and counts until the end of the stream.
FAR(count_bytes) {
  Fd listener = listen_at(here());
  near.say(port_of(listener));
  Fd fd = accept_one(listener);
  near.say(static_cast<long>(read_to_end(fd).size()));
}

int status_of(pid_t child) {
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

long raw(long number, long argument) {  // past every library
#if defined(__x86_64__)
  long result = number;
  asm volatile("syscall" : "+a"(result) : "D"(argument) : "rcx", "r11", "memory");
  return result;
#else
  return syscall(number, argument);
#endif
}

TEST(Entry, AStreamReadsAndWrites) {
  Echo far(kProof);
  FILE* in = fdopen(dup(far.fd), "r");
  FILE* out = fdopen(dup(far.fd), "w");
  ASSERT_TRUE(in != nullptr && out != nullptr);
  for (int i = 0; i < 3; ++i) {
    EXPECT_GT(fprintf(out, "line%d\n", i), 0);
    EXPECT_EQ(fflush(out), 0);
    char line[32] = {};
    EXPECT_NE(fgets(line, sizeof line, in), nullptr);
    EXPECT_EQ(line, "line" + std::to_string(i) + "\n");
  }
  EXPECT_GE(fileno(in), 0);
  fclose(in);
  fclose(out);
  EXPECT_EQ(far.all(), "line0|line1|line2|");
}

TEST(Entry, PrintsToADescriptor) {
  Echo far(kProof);
  EXPECT_EQ(dprintf(far.fd, "%s-%03d", "n", 7), 5);
  EXPECT_EQ(read_exactly(far.fd, 5), "n-007");
  EXPECT_EQ(far.all(), "n-007");
}

TEST(Entry, BecomesStandardInputAndOutput) {
  Echo far(kProof);
  const pid_t child = in_child([&] {
    if (dup2(far.fd, STDIN_FILENO) != STDIN_FILENO || dup2(far.fd, STDOUT_FILENO) != STDOUT_FILENO) _exit(1);
    closefrom(3);
    printf("hello\n");
    fflush(stdout);
    char line[32] = {};
    if (fgets(line, sizeof line, stdin) == nullptr || strcmp(line, "hello\n") != 0) _exit(2);
    _exit(0);
  });
  EXPECT_EQ(status_of(child), 0);
  EXPECT_EQ(far.all(), "hello|");
}

TEST(Entry, BecomesStandardInputAndOutputAsTheLowestNumber) {
  Echo far(kProof);
  const pid_t child = in_child([&] {
    close(STDOUT_FILENO);
    if (dup(far.fd) != STDOUT_FILENO) _exit(1);
    printf("hello\n");
    if (fflush(stdout) != 0) _exit(2);
    close(STDIN_FILENO);
    if (fcntl(far.fd, F_DUPFD, 0) != STDIN_FILENO) _exit(3);
    char line[32] = {};
    if (fgets(line, sizeof line, stdin) == nullptr || strcmp(line, "hello\n") != 0) _exit(4);
    _exit(0);
  });
  EXPECT_EQ(status_of(child), 0);
  EXPECT_EQ(far.all(), "hello|");
}

TEST(Entry, IsAcceptedAsStandardInput) {
  Echo proof(kProof);
  Far far("caller");
  Fd listener = listen_at(here());
  far.say(port_of(listener));
  ASSERT_EQ(wait_for(listener, POLLIN), POLLIN);
  const int kept = dup(STDIN_FILENO);
  close(STDIN_FILENO);
  ASSERT_EQ(accept(listener, nullptr, nullptr), STDIN_FILENO);
  char line[32] = {};
  EXPECT_NE(fgets(line, sizeof line, stdin), nullptr);
  EXPECT_STREQ(line, "hello\n");
  EXPECT_EQ(write(STDIN_FILENO, "bye", 3), 3);
  dup2(kept, STDIN_FILENO);
  close(kept);
  EXPECT_EQ(far.word(), "bye");
  far.finish();
  EXPECT_EQ(proof.all(), "-");
}

TEST(Entry, LibcsAsynchronousRequests) {
  Echo far(kProof);
  char out[] = "hello", in[5] = {};
  aiocb write{}, read{};
  write.aio_fildes = read.aio_fildes = far.fd;
  write.aio_buf = out;
  read.aio_buf = in;
  write.aio_nbytes = read.aio_nbytes = sizeof in;
  const aiocb* done[] = {&write};
  const timespec guard{20, 0};
  ASSERT_EQ(aio_write(&write), 0);
  EXPECT_EQ(aio_suspend(done, 1, &guard), 0);
  EXPECT_EQ(aio_error(&write), 0);
  EXPECT_EQ(aio_return(&write), 5);
  done[0] = &read;
  ASSERT_EQ(aio_read(&read), 0);
  EXPECT_EQ(aio_suspend(done, 1, &guard), 0);
  EXPECT_EQ(aio_error(&read), 0);
  EXPECT_EQ(aio_return(&read), 5);
  EXPECT_EQ(std::string(in, 5), "hello");
  EXPECT_EQ(far.all(), "hello");
}

TEST(Entry, TheKernelsAsynchronousRequests) {
  Echo far(kProof);
  aio_context_t context = 0;
  if (syscall(SYS_io_setup, 8, &context) != 0) GTEST_SKIP() << "no io_setup() here";
  iocb poll{}, *request = &poll;
  poll.aio_lio_opcode = IOCB_CMD_POLL;
  poll.aio_fildes = static_cast<uint32_t>(static_cast<int>(far.fd));
  poll.aio_buf = POLLIN;
  ASSERT_EQ(syscall(SYS_io_submit, context, 1, &request), 1);
  io_event event{};
  timespec soon{0, 20'000'000}, guard{20, 0};
  EXPECT_EQ(syscall(SYS_io_getevents, context, 1, 1, &event, &soon), 0);
  write_all(far.fd, "x");
  EXPECT_EQ(syscall(SYS_io_getevents, context, 1, 1, &event, &guard), 1);
  EXPECT_EQ(event.res & POLLIN, POLLIN);
  EXPECT_EQ(read_exactly(far.fd, 1), "x");
  syscall(SYS_io_destroy, context);
  EXPECT_EQ(far.all(), "x");
}

TEST(Entry, SystemCallsByNumber) {
  Echo far(kProof);
  const long fd = far.fd;
  char data[8] = {};
  EXPECT_EQ(syscall(SYS_write, fd, "abc", 3), 3);
  pollfd p{far.fd, POLLIN, 0};
  timespec limit{20, 0};
  EXPECT_EQ(syscall(SYS_ppoll, &p, 1, &limit, nullptr, 8), 1);
  EXPECT_EQ(p.revents, POLLIN);
  EXPECT_EQ(read_exactly(far.fd, 2), "ab");
  EXPECT_EQ(syscall(SYS_read, fd, data, 8), 1);
  EXPECT_EQ(data[0], 'c');
  EXPECT_EQ(syscall(SYS_sendto, fd, "de", 2, MSG_NOSIGNAL, nullptr, 0), 2);
  EXPECT_EQ(syscall(SYS_recvfrom, fd, data, 2, MSG_WAITALL, nullptr, nullptr), 2);
  EXPECT_EQ(std::string(data, 2), "de");
  EXPECT_EQ(syscall(SYS_fcntl, fd, F_GETFL), O_RDWR);
  EXPECT_EQ(syscall(SYS_close, static_cast<long>(far.fd.release())), 0);
  EXPECT_EQ(far.seen(), "abcde");
  far.finish();
}

// As Python's ctypes and Java's JNA call them.
TEST(Entry, FunctionsLookedUpInLibc) {
  void* libc = dlopen("libc.so.6", RTLD_LAZY);
  ASSERT_NE(libc, nullptr);
  const auto in_libc = [&]<class F>(F*, const char* name) { return reinterpret_cast<F*>(dlsym(libc, name)); };
#define IN_LIBC(name) in_libc(static_cast<decltype(name)*>(nullptr), #name)
  Far far("echo_stream");
  const Address to = there(static_cast<uint16_t>(far.number()));
  const int fd = IN_LIBC(socket)(AF_INET, SOCK_STREAM, 0);
  ASSERT_EQ(IN_LIBC(connect)(fd, to.raw(), to.size), 0);
  char text[6] = "";
  EXPECT_EQ(IN_LIBC(send)(fd, "hello", 5, 0), 5);
  EXPECT_EQ(IN_LIBC(recv)(fd, text, 5, MSG_WAITALL), 5);
  EXPECT_STREQ(text, "hello");
  pollfd p{fd, POLLOUT, 0};
  EXPECT_EQ(IN_LIBC(poll)(&p, 1, 1000), 1);
  for (int i = 0; i < kProof; ++i) exchange(fd, ".");
  EXPECT_EQ(IN_LIBC(close)(fd), 0);
#undef IN_LIBC
  EXPECT_EQ(far.word().substr(0, 5), "hello");
  far.finish();
  dlclose(libc);
}

TEST(Entry, ALibraryThatIsBoundToItselfFirst) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers refuse RTLD_DEEPBIND";
#endif
  for (const auto& [path, flags] :
       {std::pair{DEEP_BOUND_LAZY, RTLD_LAZY}, std::pair{DEEP_BOUND_NOW, RTLD_NOW | RTLD_GLOBAL}}) {
    Echo echo(kProof);
    void* library = dlopen(path, flags | RTLD_DEEPBIND);
    ASSERT_NE(library, nullptr) << dlerror();
    const auto talk =
        reinterpret_cast<bool (*)(int, const char*, char*, size_t)>(dlsym(library, "deep_bound_echo"));
    const auto end = reinterpret_cast<bool (*)(int)>(dlsym(library, "deep_bound_close"));
    char text[6] = "";
    EXPECT_TRUE(talk(echo.fd, "hello", text, 5)) << path;
    EXPECT_STREQ(text, "hello");
    EXPECT_TRUE(end(echo.fd.release()));
    EXPECT_EQ(echo.seen(), "hello!");
    echo.finish();
    EXPECT_EQ(dlclose(library), 0);
  }
}

TEST(Entry, ALibraryThatIsBoundToItselfWhileAThreadLooksUp) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers refuse RTLD_DEEPBIND";
#endif
  Echo echo(kProof);
  std::atomic<bool> done{false};
  std::thread other([&] {
    void* libc = dlopen("libc.so.6", RTLD_LAZY);
    while (!done) EXPECT_NE(dlsym(libc, "send"), nullptr);
    dlclose(libc);
  });
  for (int i = 0; i < 200 && !HasFailure(); ++i) {
    void* library = dlopen(DEEP_BOUND_NOW, RTLD_NOW | RTLD_DEEPBIND);
    ASSERT_NE(library, nullptr) << dlerror();
    const auto talk =
        reinterpret_cast<bool (*)(int, const char*, char*, size_t)>(dlsym(library, "deep_bound_echo"));
    char text[2] = "";
    EXPECT_TRUE(talk(echo.fd, ".", text, 1)) << i;
    EXPECT_EQ(dlclose(library), 0);
  }
  done = true;
  other.join();
  EXPECT_EQ(echo.all(), "-");
}

TEST(Entry, OffsetsAndMarks) {
  Echo far(kProof);
  char data[8] = {};
  iovec v{data, 3};
  EXPECT_EQ(preadv2(far.fd, &v, 1, -1, RWF_NOWAIT), -1);
  EXPECT_EQ(errno, EAGAIN);
  memcpy(data, "xyz", 3);
  EXPECT_EQ(pwritev2(far.fd, &v, 1, -1, 0), 3);
  EXPECT_EQ(wait_for(far.fd, POLLIN), POLLIN);
  memset(data, 0, sizeof data);
  EXPECT_EQ(preadv2(far.fd, &v, 1, -1, 0), 3);
  EXPECT_EQ(std::string(data), "xyz");
  EXPECT_EQ(pread(far.fd, data, 1, 0), -1);
  EXPECT_EQ(errno, ESPIPE);
  EXPECT_EQ(pwrite(far.fd, data, 1, 0), -1);
  EXPECT_EQ(errno, ESPIPE);
  EXPECT_EQ(lseek(far.fd, 0, SEEK_CUR), -1);
  EXPECT_EQ(errno, ESPIPE);
  EXPECT_EQ(sockatmark(far.fd), 0);
  EXPECT_EQ(read(far.fd, data, 0), 0);
  struct stat status {};
  EXPECT_EQ(fstat(far.fd, &status), 0);
  EXPECT_TRUE(S_ISSOCK(status.st_mode));
  EXPECT_EQ(far.all(), "xyz");
}

TEST(Entry, ADescriptorClosedPastTheLibrary) {
  Echo far(kProof);
  const int number = far.fd.release();
  EXPECT_EQ(raw(SYS_close, number), 0);
  const int again = open("/proc/self/comm", O_RDONLY | O_CLOEXEC);
  EXPECT_EQ(again, number);
  char data[32] = {};
  EXPECT_GT(read(again, data, sizeof data), 0);
  EXPECT_EQ(strncmp(data, "posix_entry", 11), 0) << data;
  EXPECT_EQ(close(again), 0);
  EXPECT_EQ(far.seen(), "-");  // and its connection has ended
  far.finish();
}

TEST(Entry, ClosefromEndsConnections) {
  Echo far(kProof);
  const pid_t child = fork();
  if (child == 0) {
    closefrom(STDERR_FILENO + 1);
    _exit(0);
  }
  EXPECT_EQ(status_of(child), 0);
  exchange(far.fd, "still");
  const int high = fcntl(far.fd, F_DUPFD_CLOEXEC, 900);
  ASSERT_GE(high, 900);
  far.fd.reset();
  closefrom(900);
  EXPECT_EQ(fcntl(high, F_GETFD), -1);
  EXPECT_EQ(far.seen(), "still");
  far.finish();
}

TEST(Entry, ProcessesOfEveryKindLeaveItAlone) {
  Echo far(kProof);
  char shell[] = "sh", option[] = "-c", command[] = "exit 7";
  char* const arguments[] = {shell, option, command, nullptr};
  exchange(far.fd, "v");
  const pid_t vforked = vfork();
  if (vforked == 0) {
    execv("/bin/sh", arguments);
    _exit(99);
  }
  EXPECT_EQ(status_of(vforked), 7);
  exchange(far.fd, "s");
  pid_t spawned = -1;
  EXPECT_EQ(posix_spawn(&spawned, "/bin/sh", nullptr, nullptr, arguments, environ), 0);
  EXPECT_EQ(status_of(spawned), 7);
  exchange(far.fd, "y");
  EXPECT_EQ(WEXITSTATUS(system("exit 7")), 7);
  exchange(far.fd, "p");
  FILE* f = popen("echo out", "r");
  ASSERT_NE(f, nullptr);
  char line[8] = {};
  EXPECT_NE(fgets(line, sizeof line, f), nullptr);
  EXPECT_EQ(pclose(f), 0);
  exchange(far.fd, "F");
  const pid_t bare = _Fork();
  if (bare == 0) _exit(7);
  EXPECT_EQ(status_of(bare), 7);
  exchange(far.fd, "c");
  constexpr size_t kStack = 256 * 1024;
  char* stack =
      static_cast<char*>(mmap(nullptr, kStack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  const pid_t cloned = clone([](void*) { return 7; }, stack + kStack, SIGCHLD, nullptr);
  EXPECT_EQ(status_of(cloned), 7);
  munmap(stack, kStack);
  exchange(far.fd, "n");
  const long numbered = syscall(SYS_clone, SIGCHLD, nullptr, nullptr, nullptr, nullptr);
  if (numbered == 0) _exit(7);
  EXPECT_EQ(status_of(static_cast<pid_t>(numbered)), 7);
  exchange(far.fd, "e");
  EXPECT_EQ(far.all(), "vsypFcne");
}

TEST(Entry, ADaemonGoesOn) {
  Far far("echo_stream");
  const auto port = static_cast<uint16_t>(far.number());
  int report[2];
  ASSERT_EQ(pipe(report), 0);
  const pid_t child = in_child([&] {
    Fd fd = connect_to(there(port));
    for (int i = 0; i < kProof; ++i) exchange(fd, ".");
    if (daemon(1, 1) != 0) _exit(1);
    exchange(fd, "daemon");
    fd.reset();
    (void)!write(report[1], "y", 1);
    _exit(0);
  });
  EXPECT_EQ(status_of(child), 0);  // the parent of the daemon
  close(report[1]);
  char answer = 0;
  EXPECT_EQ(read(report[0], &answer, 1), 1);
  EXPECT_EQ(answer, 'y');
  close(report[0]);
  EXPECT_EQ(far.word(), std::string(kProof, '.').append("daemon"));
  far.finish();
}

TEST(Entry, QuickExitLosesNothing) {
  Far far("count_bytes");
  const auto port = static_cast<uint16_t>(far.number());
  const std::string bytes = pattern(200000);
  const pid_t child = in_child([&] {
    Fd fd = connect_to(there(port));
    write_all(fd, bytes);
    fd.release();
    quick_exit(3);
  });
  EXPECT_EQ(status_of(child), 3);
  EXPECT_EQ(far.number(), static_cast<long>(bytes.size()));
  far.finish();
}

// A ring without liburing whose queue is in memory of the program's: nobody can see it.
TEST(Entry, IoUringSendsEverythingToTheKernel) {
  Echo far(kProof);
  io_uring_params parameters{};
  constexpr unsigned kNoMmap = 1u << 14;  // IORING_SETUP_NO_MMAP, Linux 6.5
  void* pages = mmap(nullptr, 1 << 21, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  parameters.flags = kNoMmap;
  parameters.sq_off.resv2 = reinterpret_cast<uintptr_t>(pages);  // user_addr
  parameters.cq_off.resv2 = reinterpret_cast<uintptr_t>(pages) + (1 << 20);
  const Fd ring(static_cast<int>(syscall(SYS_io_uring_setup, 4, &parameters)));
  if (ring < 0) GTEST_SKIP() << "no such io_uring here";
  exchange(far.fd, "after");
  EXPECT_EQ(far.all(), "after");
}

// By liburing, of which requests are seen: one that is a socket's, and one that is a file's, but of a socket.
TEST(Entry, RingThatReceivesHasTheKernelsSocket) {
  Echo far(kProof);
  exchange(far.fd, "before ");
  Ring ring;
  if (!ring.made()) GTEST_SKIP() << "no io_uring here";
  char data[8] = {};
  io_uring_prep_recv(ring.next(), far.fd, data, sizeof data, MSG_WAITALL);
  ASSERT_EQ(io_uring_submit(&ring.ring), 1);
  write_all(far.fd, "12345678");
  EXPECT_EQ(ring.answer(), 8);
  EXPECT_EQ(std::string_view(data, 8), "12345678");
  EXPECT_EQ(far.all(), "before 12345678");
}

TEST(Entry, RingThatReadsHasTheKernelsSocket) {
  Echo far(kProof);
  exchange(far.fd, "before ");
  Ring ring;
  if (!ring.made()) GTEST_SKIP() << "no io_uring here";
  char data[4] = {};
  write_all(far.fd, "abcd");
  io_uring_prep_read(ring.next(), far.fd, data, sizeof data, 0);
  ASSERT_EQ(io_uring_submit_and_wait(&ring.ring, 1), 1);
  EXPECT_GE(ring.answer(), 1);
  EXPECT_EQ(data[0], 'a');
  EXPECT_EQ(far.all(), "before abcd");
}

TEST(Entry, RingThatKnowsASocketHasTheKernels) {
  Echo far(kProof);
  exchange(far.fd, "before ");
  Ring ring;
  if (!ring.made()) GTEST_SKIP() << "no io_uring here";
  const int files[] = {far.fd};
  ASSERT_EQ(io_uring_register_files(&ring.ring, files, 1), 0);
  write_all(far.fd, "abcd");
  char data[4] = {};
  io_uring_sqe* request = ring.next();
  io_uring_prep_read(request, 0, data, sizeof data, 0);
  request->flags |= IOSQE_FIXED_FILE;
  ASSERT_EQ(io_uring_submit_and_wait(&ring.ring, 1), 1);
  EXPECT_GE(ring.answer(), 1);
  EXPECT_EQ(data[0], 'a');
  EXPECT_EQ(io_uring_unregister_files(&ring.ring), 0);
  EXPECT_EQ(far.all(), "before abcd");
}

}  // namespace
