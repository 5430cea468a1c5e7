set(link_memory_test accel-base)
