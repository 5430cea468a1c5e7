set(link_posix_epoll_test accel-posix)
