# What `cmake --install` installs: static libraries, public headers, programs (see surgekv_program), and package files.
# Outside this tree find_package(surgekv) then offers surgekv::krcore and surgekv::kvs, and pkg-config krcore and kvs.

include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/surgekv)
set(libraries krcore)
if(TARGET kvs)
  list(APPEND libraries kvs)
endif()

install(TARGETS ${libraries} EXPORT surgekvTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT libraries)
install(DIRECTORY krcore/include/ kvs/include/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT libraries
        FILES_MATCHING PATTERN "*.h")
install(EXPORT surgekvTargets NAMESPACE surgekv:: DESTINATION ${package_dir} COMPONENT libraries)

configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/surgekvConfig.cmake.in
  ${CMAKE_BINARY_DIR}/surgekvConfig.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${CMAKE_BINARY_DIR}/surgekvConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/surgekvConfig.cmake ${CMAKE_BINARY_DIR}/surgekvConfigVersion.cmake
        DESTINATION ${package_dir} COMPONENT libraries)

# For pkg-config. The libraries are static, so what they need is in Libs, and --static is not needed. The prefix is that
# of `cmake --install`, which may be another than that of this build.
file(RELATIVE_PATH prefix_of_pc ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
string(REGEX REPLACE "/$" "" prefix_of_pc "${prefix_of_pc}")
set(pc_system_libs -ldl -pthread)
set(runtime ${CMAKE_CXX_IMPLICIT_LINK_LIBRARIES})  # of C++, which a C compiler does not link
list(REMOVE_ITEM runtime ${CMAKE_C_IMPLICIT_LINK_LIBRARIES})
list(TRANSFORM runtime PREPEND -l)
list(APPEND pc_system_libs ${runtime})
list(JOIN pc_system_libs " " pc_system_libs)
foreach(library ${libraries})
  configure_file(${CMAKE_CURRENT_LIST_DIR}/${library}.pc.in ${CMAKE_BINARY_DIR}/${library}.pc @ONLY)
  install(FILES ${CMAKE_BINARY_DIR}/${library}.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT libraries)
endforeach()
