# Writes a C++ file that holds text files as string literals.
#
#   cmake -DOUTPUT=embedded.cc -DINPUTS=a.json,b.json [-DROOM=families]
#     -P embed.cmake
string(REPLACE "," ";" inputs "${INPUTS}")
if(NOT DEFINED ROOM)
  set(ROOM families)
endif()
set(code "#include \"formats/embedded.h\"\n\n")
string(APPEND code "namespace ckpt::${ROOM} {\nnamespace {\n\n")
string(APPEND code "constexpr Embedded kFiles[] = {\n")
foreach(input ${inputs})
  get_filename_component(name ${input} NAME_WLE)
  file(READ ${input} text)
  string(APPEND code "    {\"${name}\", R\"embedded(${text})embedded\"},\n")
endforeach()
string(APPEND code "};\n\n}  // namespace\n\n")
string(APPEND code
  "std::span<const Embedded> embedded() { return kFiles; }\n\n"
  "std::string_view embedded_text(std::string_view name) {\n"
  "  for (const Embedded& file : kFiles)\n"
  "    if (file.name == name) return file.text;\n"
  "  return {};\n"
  "}\n\n"
  "}  // namespace ckpt::${ROOM}\n")
file(WRITE ${OUTPUT} "${code}")
