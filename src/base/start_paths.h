// What the process's paths meant when it started. Modules and libraries are loaded late, at the first
// accelerated socket. By then chroot(), a mount namespace or chdir() may have changed what their paths name,
// and the code that is found there would run with the process's privilege.
#pragma once

#include <string>

namespace accel {

/// Notes root, working folder and the folder of the object that this code is linked into. Some five system
/// calls, no allocation. To be called at load time; only the first call counts.
void note_start_paths();

/// nullptr while a library's path means what it meant at start. Else why not, as the end of a sentence: the
/// root is another folder or mount, or LD_LIBRARY_PATH has relative entries and the working folder is another
/// one. Clobbers errno.
const char* start_paths_changed();

/// The folder that libaccel.so (or the executable that links this) was loaded from, as an absolute path that
/// still names the same folder. Empty: it does not, and `why` is appended to.
std::string own_folder(std::string& why);

}  // namespace accel
