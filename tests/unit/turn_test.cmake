set(link_turn_test accel-engine)
