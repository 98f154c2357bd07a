# Read by CMake after llama.cpp's project() (CMAKE_PROJECT_llama.cpp_INCLUDE in tools/llama_cpp.sh); llama.cpp's own files
# stay as they are. REMOTEGPU_KERNELS=few leaves out most files of kernels that our tests do not call: the
# products of rare kinds of weights, and flash attention for heads of other sizes. A program that calls one of them ends
# with a line that names it (`symbol lookup error`), since a library's functions are looked up at their first call.

function(remotegpu_choose_kernels)
    # What runs on the CPU is optimised little, but for the CPU's kernels, which the tests compare with.
    target_compile_options(ggml-cpu PRIVATE -O3)
    # Most of the time for a file of C++ here goes to its headers: the compiler takes 16 files at once. Those below say what
    # others of their batch say differently.
    foreach(target IN ITEMS llama llama-common mtmd server-context)
        get_target_property(sources ${target} SOURCES)
        get_target_property(folder ${target} SOURCE_DIR)
        set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 16)
        foreach(source IN LISTS sources)
            cmake_path(ABSOLUTE_PATH source BASE_DIRECTORY "${folder}")
            set(skip OFF)
            if(source MATCHES "/(llama-kv-cache-dsv4|json|value|mtmd/clip|mtmd/mtmd[a-z-]*)[.]cpp$")
                set(skip ON)
            endif()
            set_source_files_properties(
                "${source}" TARGET_DIRECTORY ${target} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ${skip})
        endforeach()
    endforeach()
    if(REMOTEGPU_KERNELS STREQUAL "all")
        return()
    endif()
    set(few "/mmq-instance-(q4_0|q4_k|q8_0)|/fattn-tile-instance-dkq40-")
    get_target_property(sources ggml-cuda SOURCES)
    set(chosen ${sources})
    list(FILTER chosen INCLUDE REGEX "${few}")
    list(FILTER sources EXCLUDE REGEX "/(mmq|fattn-tile|fattn-mma-f16)-instance-")
    set_property(TARGET ggml-cuda PROPERTY SOURCES ${sources} ${chosen} "${REMOTEGPU_FEW_KERNELS}")
endfunction()

cmake_language(DEFER CALL remotegpu_choose_kernels)
