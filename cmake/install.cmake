# SPDX-License-Identifier: Apache-2.0
# cmake --install: the binary, its modules, the library, and a CMake package
# so that find_package(ckpt) gives ckpt::ckpt.
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

install(TARGETS ckpt RUNTIME)
# In lib whatever the system calls its own: lib/module.cc looks there.
foreach(module TORCH MPI CUDA)
  string(TOLOWER ckpt_${module} target)
  if(TARGET ${target})
    install(TARGETS ${target} LIBRARY DESTINATION lib)
  endif()
endforeach()
# Man pages and completions, made by the program itself.
if(NOT CMAKE_CROSSCOMPILING OR CMAKE_CROSSCOMPILING_EMULATOR)
  install(CODE "
    set(share \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_DATADIR}\")
    set(ckpt ${CMAKE_CROSSCOMPILING_EMULATOR} \"$<TARGET_FILE:ckpt>\")
    execute_process(COMMAND \${ckpt} man --dir \"\${share}/man/man1\" --quiet
      COMMAND_ERROR_IS_FATAL ANY)
    foreach(file bash-completion/completions/ckpt zsh/site-functions/_ckpt
        fish/vendor_completions.d/ckpt.fish)
      string(REGEX MATCH \"^[a-z]+\" shell \${file})
      get_filename_component(directory \${file} DIRECTORY)
      file(MAKE_DIRECTORY \"\${share}/\${directory}\")
      execute_process(COMMAND \${ckpt} completion \${shell}
        OUTPUT_FILE \"\${share}/\${file}\" COMMAND_ERROR_IS_FATAL ANY)
    endforeach()
  ")
endif()
install(TARGETS ckpt_shared EXPORT ckpt LIBRARY)
install(DIRECTORY lib/include/ckpt TYPE INCLUDE)
# PYTHONPATH is then PREFIX/share/ckpt/python; it finds binary and library.
install(DIRECTORY python/ckpt python/ckpt_reshard
  DESTINATION ${CMAKE_INSTALL_DATADIR}/ckpt/python
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
