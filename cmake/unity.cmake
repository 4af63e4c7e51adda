# SPDX-License-Identifier: Apache-2.0
# Each folder of a target as one file: headers are parsed and templates are
# compiled once, which halves what a build costs. Off in the debug preset, where
# files are compiled again one by one and a missing #include shows.
option(CKPT_UNITY "Compile each folder as one file" OFF)

# ckpt_unity(TARGET [PARTS PREFIX...] [APART FILE...]): files that begin with
# one of PARTS are a folder of their own; FILEs stay alone, since a name of
# theirs is also that of something else in the folder. Comes after the last of
# the target's sources.
function(ckpt_unity target)
  if(NOT CKPT_UNITY)
    return()
  endif()
  cmake_parse_arguments(arg "" "" "PARTS;APART" ${ARGN})
  set_target_properties(${target} PROPERTIES
    UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  # g++ warns of classes that have a member of an anonymous namespace's, if the
  # file is not the one that it was given.
  target_compile_options(${target} PRIVATE
    $<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>)
  get_target_property(sources ${target} SOURCES)
  list(FILTER sources EXCLUDE REGEX "^[$]<")  # objects of another target
  list(REMOVE_ITEM sources ${arg_APART})
  foreach(source IN LISTS sources)
    get_filename_component(group ${source} DIRECTORY)
    foreach(part IN LISTS arg_PARTS)
      if(source MATCHES "^${part}")
        set(group ${part})
      endif()
    endforeach()
    string(MAKE_C_IDENTIFIER "${target}_${group}" group)
    set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${group})
  endforeach()
endfunction()

# ckpt_unit(TARGET UNIT FILE|FOLDER...): FILEs of any folder, and what FOLDERs
# have but for files apart, as one file more. Small folders go together, since
# each unit parses the same headers again, three seconds of them; what gathers
# files apart has names that are taken in their own folders, but not by each
# other. Folders come before files that another unit takes out of them.
function(ckpt_unit target unit)
  if(NOT CKPT_UNITY)
    return()
  endif()
  get_target_property(sources ${target} SOURCES)
  foreach(source IN LISTS sources)
    get_filename_component(folder ${source} DIRECTORY)
    get_source_file_property(group ${source} UNITY_GROUP)
    if(source IN_LIST ARGN OR (group AND folder IN_LIST ARGN))
      set_source_files_properties(${source} PROPERTIES
        UNITY_GROUP ${target}_${unit})
    endif()
  endforeach()
endfunction()

# ckpt_join(TARGET UNIT OTHER...): the OTHER units' files go to UNIT, since none
# of them has a name that another has. A unit is what ckpt_unit made, or a
# folder's rest: "megatron_dist"; ".": the target's own folder.
function(ckpt_join target unit)
  if(NOT CKPT_UNITY)
    return()
  endif()
  set(to ${target}_${unit})
  set(groups "")
  foreach(other IN LISTS ARGN)
    string(REGEX REPLACE "^[.]$" "" other "${other}")
    list(APPEND groups ${target}_${other})
  endforeach()
  get_target_property(sources ${target} SOURCES)
  foreach(source IN LISTS sources)
    get_source_file_property(group ${source} UNITY_GROUP)
    if(group IN_LIST groups)
      set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${to})
    endif()
  endforeach()
endfunction()
