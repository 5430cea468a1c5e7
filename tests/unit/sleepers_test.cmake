set(link_sleepers_test accel-engine)
