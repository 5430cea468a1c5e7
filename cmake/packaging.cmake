# What is installed (cmake --install), in four components, and the .deb file that CPack makes of each.
# A package's files go below /usr: cmake --preset deb && cmake --build build-deb --target package.

if(ACCEL_SANITIZED OR CMAKE_CXX_FLAGS MATCHES "-fsanitize=")
  return()
endif()

set(accel_made ${CMAKE_BINARY_DIR}/installed)  # files that are written for the installation alone
file(MAKE_DIRECTORY ${accel_made})

# ---- libaccel: what programs are preloaded with
install(TARGETS accel accel-xdp-module LIBRARY COMPONENT libaccel NAMELINK_SKIP)
install(FILES README.md docs/settings.md docs/counters.md docs/reasons.md docs/compatibility.md docs/security.md docs/mlx5.md docs/tcp.md
              docs/quickstart.md docs/troubleshooting.md docs/observability.md docs/containers.md docs/comparison.md docs/api.md
        DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT libaccel)
if(NOT CMAKE_INSTALL_PREFIX STREQUAL "/usr")  # a package has its copyright file instead
  install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT libaccel)
endif()
install(FILES config/libaccel.toml DESTINATION ${CMAKE_INSTALL_DOCDIR}/examples COMPONENT libaccel)
install(DIRECTORY config/apparmor config/grafana config/kubernetes DESTINATION ${CMAKE_INSTALL_DOCDIR}/examples COMPONENT libaccel)
install(DIRECTORY config/profiles DESTINATION ${CMAKE_INSTALL_DATADIR}/libaccel COMPONENT libaccel FILES_MATCHING PATTERN "*.toml")

# The drop-ins name the library where this installation puts it.
file(GLOB accel_drop_ins CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/config/systemd/*)
foreach(file ${accel_drop_ins})
  get_filename_component(name ${file} NAME)
  file(READ ${file} text)
  string(REPLACE "/usr/local/lib" "${CMAKE_INSTALL_FULL_LIBDIR}" text "${text}")
  file(CONFIGURE OUTPUT ${accel_made}/systemd/${name} CONTENT "${text}" @ONLY)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
  install(FILES ${accel_made}/systemd/${name} DESTINATION ${CMAKE_INSTALL_DOCDIR}/examples/systemd COMPONENT libaccel)
endforeach()

# /etc/libaccel.toml: of an installation below /usr it is the host's file, of another a file below its prefix. The operator's is kept.
install(CODE "
  set(etc \"\${CMAKE_INSTALL_PREFIX}/etc\")
  if(\"\${CMAKE_INSTALL_PREFIX}\" MATCHES \"^/usr(/local)?/?\$\")
    set(etc /etc)
  endif()
  if(EXISTS \"\$ENV{DESTDIR}\${etc}/libaccel.toml\")
    message(STATUS \"Kept: \${etc}/libaccel.toml\")
  else()
    file(INSTALL FILES \"${CMAKE_SOURCE_DIR}/config/libaccel.toml\" DESTINATION \"\${etc}\")
  endif()" COMPONENT libaccel)

# ---- libaccel-mlx5
install(TARGETS accel-mlx5-module LIBRARY COMPONENT libaccel-mlx5 NAMELINK_SKIP)

# ---- libaccel-tools: the command, and its pages and completions, which it writes itself
install(TARGETS accel_tool RUNTIME COMPONENT libaccel-tools)
set(accel_pages "")
foreach(page accel.1 libaccel.toml.5 libaccel.7)
  string(REGEX REPLACE ".*\\." "" section ${page})
  add_custom_command(OUTPUT ${accel_made}/${page}.gz
    COMMAND accel_tool docs ${page} > ${accel_made}/${page} COMMAND gzip -9nf ${accel_made}/${page}
    DEPENDS accel_tool VERBATIM)
  list(APPEND accel_pages ${accel_made}/${page}.gz)
  set(component libaccel)
  if(page STREQUAL "accel.1")
    set(component libaccel-tools)
  endif()
  install(FILES ${accel_made}/${page}.gz DESTINATION ${CMAKE_INSTALL_MANDIR}/man${section} COMPONENT ${component})
endforeach()
foreach(shell bash zsh schema)
  add_custom_command(OUTPUT ${accel_made}/${shell} COMMAND accel_tool docs ${shell} > ${accel_made}/${shell} DEPENDS accel_tool VERBATIM)
  list(APPEND accel_pages ${accel_made}/${shell})
endforeach()
add_custom_target(pages ALL DEPENDS ${accel_pages})
install(FILES ${accel_made}/bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME accel COMPONENT libaccel-tools)
install(FILES ${accel_made}/zsh DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/vendor-completions RENAME _accel COMPONENT libaccel-tools)

# ---- libaccel-dev: for programs that use the library's own calls, for editors of the configuration, and for build systems that start
# programs with the library
install(FILES ${CMAKE_SOURCE_DIR}/include/accel.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT libaccel-dev)
install(FILES ${accel_made}/schema DESTINATION ${CMAKE_INSTALL_DATADIR}/libaccel RENAME libaccel.schema.json COMPONENT libaccel-dev)
configure_file(${CMAKE_SOURCE_DIR}/cmake/libaccel.pc.in ${accel_made}/libaccel.pc @ONLY)
install(FILES ${accel_made}/libaccel.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT libaccel-dev)

# ---- the packages
set(accel_packages libaccel libaccel-mlx5 libaccel-tools libaccel-dev)
string(TIMESTAMP accel_date "%a, %d %b %Y %H:%M:%S +0000" UTC)
set(accel_maintainer "libaccel maintainers <maintainers@libaccel.invalid>")
configure_file(${CMAKE_SOURCE_DIR}/cmake/deb/changelog.in ${accel_made}/changelog @ONLY)
configure_file(${CMAKE_SOURCE_DIR}/cmake/deb/copyright ${accel_made}/copyright COPYONLY)
add_custom_command(OUTPUT ${accel_made}/changelog.gz COMMAND gzip -9nkf ${accel_made}/changelog DEPENDS ${accel_made}/changelog VERBATIM)
add_custom_target(deb-files ALL DEPENDS ${accel_made}/changelog.gz)
if(CMAKE_INSTALL_PREFIX STREQUAL "/usr")
  foreach(package ${accel_packages})
    install(FILES ${accel_made}/copyright DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/${package} COMPONENT ${package})
    install(FILES ${accel_made}/changelog.gz DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/${package} COMPONENT ${package})
    if(EXISTS ${CMAKE_SOURCE_DIR}/cmake/deb/${package}.lintian-overrides)
      install(FILES ${CMAKE_SOURCE_DIR}/cmake/deb/${package}.lintian-overrides DESTINATION ${CMAKE_INSTALL_DATADIR}/lintian/overrides
              RENAME ${package} COMPONENT ${package})
    endif()
  endforeach()
endif()

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME libaccel)
set(CPACK_PACKAGE_VENDOR libaccel)
set(CPACK_PACKAGE_CONTACT "${accel_maintainer}")
set(CPACK_DEBIAN_PACKAGE_MAINTAINER "${accel_maintainer}")
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION net)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_ALL ${accel_packages})
set(CPACK_SET_DESTDIR ON)  # /etc/libaccel.toml lies beside the prefix
set(CPACK_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${CMAKE_LIBRARY_OUTPUT_DIRECTORY})
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)

set(CPACK_DEBIAN_LIBACCEL_PACKAGE_NAME libaccel)
set(CPACK_COMPONENT_LIBACCEL_DESCRIPTION
"TCP and UDP of unmodified programs on the NIC's queues
A library to preload: socket and epoll calls of the program run through a
TCP/IP stack in its own process, on AF_XDP queues of an ordinary NIC. What
cannot be served this way is passed to the kernel.
.
The package libaccel-tools has the command that runs programs with it and
says what they do; libaccel-mlx5 is for ConnectX NICs.")
# libaccel.so loads these at their first use (src/preload/linker/delay_load.cc), so that no tool sees them in it.
set(CPACK_DEBIAN_LIBACCEL_PACKAGE_DEPENDS "libnl-3-200, libnl-route-3-200, libev4, libgcc-s1, libisal2")
set(CPACK_DEBIAN_LIBACCEL_PACKAGE_RECOMMENDS libaccel-tools)
set(CPACK_DEBIAN_LIBACCEL_PACKAGE_SUGGESTS libaccel-mlx5)
file(WRITE ${accel_made}/conffiles "/etc/libaccel.toml\n")
file(WRITE ${accel_made}/triggers "activate-noawait ldconfig\n")
set(CPACK_DEBIAN_LIBACCEL_PACKAGE_CONTROL_EXTRA ${accel_made}/conffiles ${accel_made}/triggers)

set(CPACK_DEBIAN_LIBACCEL-MLX5_PACKAGE_NAME libaccel-mlx5)
set(CPACK_COMPONENT_LIBACCEL-MLX5_DESCRIPTION
"raw-packet queues of ConnectX NICs for libaccel
With it libaccel sends and receives by queues of an mlx5 NIC (ConnectX) of
its own. Without it these NICs are served by AF_XDP.")
set(CPACK_DEBIAN_LIBACCEL-MLX5_PACKAGE_DEPENDS "libaccel (= ${PROJECT_VERSION}), ibverbs-providers")
set(CPACK_DEBIAN_LIBACCEL-MLX5_PACKAGE_CONTROL_EXTRA ${accel_made}/triggers)

set(CPACK_DEBIAN_LIBACCEL-TOOLS_PACKAGE_NAME libaccel-tools)
set(CPACK_COMPONENT_LIBACCEL-TOOLS_DESCRIPTION
"command that runs programs with libaccel and shows what they do
The command accel starts a program with libaccel, says what a machine and
its NICs offer and what they lack, shows the sockets of running programs
with their paths and reasons, and translates configurations of VMA, XLIO
and Onload.")
set(CPACK_DEBIAN_LIBACCEL-TOOLS_PACKAGE_DEPENDS "libaccel (= ${PROJECT_VERSION})")

set(CPACK_DEBIAN_LIBACCEL-DEV_PACKAGE_NAME libaccel-dev)
set(CPACK_DEBIAN_LIBACCEL-DEV_PACKAGE_SECTION libdevel)
set(CPACK_COMPONENT_LIBACCEL-DEV_DESCRIPTION
"header of libaccel, and files for build systems and editors
The header accel.h, with the library's own calls for programs that may run
with it, the pkg-config file, with the place of the library that is to be
preloaded, and a JSON schema of the configuration for editors.")
set(CPACK_DEBIAN_LIBACCEL-DEV_PACKAGE_DEPENDS "libaccel (= ${PROJECT_VERSION})")
include(CPack)
