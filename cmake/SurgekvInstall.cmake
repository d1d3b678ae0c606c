# What `cmake --install` installs: static libraries, public headers, programs (see surgekv_program), and a package
# file, so that find_package(surgekv) offers surgekv::krcore and surgekv::kvs outside this tree.

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
        ${CMAKE_CURRENT_LIST_DIR}/Findibverbs.cmake DESTINATION ${package_dir} COMPONENT libraries)
