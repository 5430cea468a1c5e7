set(link_posix_options_test accel-posix)
