set(link_posix_signals_test accel-posix)
