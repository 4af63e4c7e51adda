# cmake --install: the binary, its modules, the library, and a CMake package
# so that find_package(ckpt) gives ckpt::ckpt.
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

install(TARGETS ckpt RUNTIME)
foreach(module TORCH MPI CUDA)
  string(TOLOWER ckpt_${module} target)
  if(TARGET ${target})
    install(TARGETS ${target} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
  endif()
endforeach()
install(TARGETS ckpt_shared EXPORT ckpt LIBRARY)
install(DIRECTORY lib/include/ckpt TYPE INCLUDE)
# PYTHONPATH is then PREFIX/share/ckpt/python; it finds binary and library.
install(DIRECTORY python/ckpt DESTINATION ${CMAKE_INSTALL_DATADIR}/ckpt/python
  PATTERN __pycache__ EXCLUDE)
install(EXPORT ckpt NAMESPACE ckpt:: FILE ckptTargets.cmake
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/ckpt)
configure_package_config_file(cmake/ckptConfig.cmake.in
  ${PROJECT_BINARY_DIR}/ckptConfig.cmake
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/ckpt)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/ckptConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/ckptConfig.cmake
  ${PROJECT_BINARY_DIR}/ckptConfigVersion.cmake
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/ckpt)
