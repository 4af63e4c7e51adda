# SPDX-License-Identifier: Apache-2.0
# Data files of a room, compiled into its library: lib/embedded.h.
#
#   ckpt_embed(TARGET NAMESPACE FILE...)
#
# defines ckpt::NAMESPACE::embedded() and embedded_text(). The same file is the
# script that writes the C++:
#
#   cmake -DOUTPUT=embedded.cc -DINPUTS=a.json,b.json -DSPACE=families
#     -P embed.cmake
function(ckpt_embed target space)
  set(output ${CMAKE_CURRENT_BINARY_DIR}/embedded_${space}.cc)
  list(TRANSFORM ARGN PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/)
  list(JOIN ARGN "," inputs)
  set(script ${PROJECT_SOURCE_DIR}/cmake/embed.cmake)
  add_custom_command(
    OUTPUT ${output}
    COMMAND ${CMAKE_COMMAND} -DOUTPUT=${output} -DINPUTS=${inputs}
      -DSPACE=${space} -P ${script}
    DEPENDS ${ARGN} ${script}
    VERBATIM)
  # Apart from the target, all of whose libraries Ninja would wait for before it
  # makes the file, and the target's own files wait for that.
  add_library(${target}_embedded_${space} OBJECT ${output})
  target_link_libraries(${target}_embedded_${space} PRIVATE ckpt::warnings)
  target_include_directories(${target}_embedded_${space} PRIVATE
    $<TARGET_PROPERTY:ckpt::lib,INTERFACE_INCLUDE_DIRECTORIES>)
  target_sources(${target} PRIVATE $<TARGET_OBJECTS:${target}_embedded_${space}>)
endfunction()

if(NOT CMAKE_SCRIPT_MODE_FILE)
  return()
endif()
string(REPLACE "," ";" inputs "${INPUTS}")
set(code "#include \"lib/embedded.h\"\n\n")
string(APPEND code "namespace ckpt::${SPACE} {\nnamespace {\n\n")
# The literals know their sizes: no compiler has to count them.
string(APPEND code "using namespace std::string_view_literals;\n\n")
string(APPEND code "constexpr Embedded kFiles[] = {\n")
foreach(input ${inputs})
  get_filename_component(name ${input} NAME_WLE)
  file(READ ${input} text)
  string(APPEND code "    {\"${name}\", R\"embedded(${text})embedded\"sv},\n")
endforeach()
string(APPEND code "};\n\n}  // namespace\n\n")
string(APPEND code
  "std::span<const Embedded> embedded() { return kFiles; }\n\n"
  "std::string_view embedded_text(std::string_view name) {\n"
  "  for (const Embedded& file : kFiles)\n"
  "    if (file.name == name) return file.text;\n"
  "  return {};\n"
  "}\n\n"
  "}  // namespace ckpt::${SPACE}\n")
file(WRITE ${OUTPUT} "${code}")
