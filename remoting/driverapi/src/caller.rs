//! Which library a call comes from, told by its return address.
//!
//! NVIDIA's libraries choose their kernels by compute capability and hold machine code for every real device, PTX only
//! for later ones. Each carries a CUDA runtime of its own, so that a driver that executes PTX can answer them with
//! a capability above all their machine code and programs with one that suits what they compile.

use std::collections::HashMap;
use std::ffi::{CStr, c_int, c_void};
use std::sync::{PoisonError, RwLock};

/// Exports a C function of three integer or pointer arguments. `$body` gets them and, as a fourth, the address that the
/// call returns to, which only code that has not yet touched the stack can see.
#[macro_export]
macro_rules! export_with_caller {
    (fn $name:ident($_first:ident, $_second:ident, $_third:ident) = $body:path;) => {
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        #[allow(non_snake_case)]
        pub unsafe extern "C" fn $name() {
            ::core::arch::naked_asm!("mov rcx, [rsp]", "jmp {body}", body = sym $body)
        }
    };
}

/// Whether an address lies in one of NVIDIA's libraries on top of the driver. The runtime as a library of its own
/// belongs to the program.
pub fn is_in_cuda_library(address: usize) -> bool {
    // By address, not by library: few places call, and one that was unloaded leaves no other call at its address.
    static KNOWN: RwLock<Option<HashMap<usize, bool>>> = RwLock::new(None);
    let known = |map: &Option<HashMap<usize, bool>>| map.as_ref()?.get(&address).copied();
    if let Some(answer) = known(&KNOWN.read().unwrap_or_else(PoisonError::into_inner)) {
        return answer;
    }
    let answer = file_of(address).is_some_and(|path| is_cuda_library(&path));
    KNOWN.write().unwrap_or_else(PoisonError::into_inner).get_or_insert_default().insert(address, answer);
    answer
}

fn is_cuda_library(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    let is_runtime_or_driver = name.starts_with("libcudart") || name.starts_with("libcuda.");
    name.starts_with("libcu") && !is_runtime_or_driver || name.starts_with("libnccl")
}

/// What `file_of` looks for and finds.
struct Search {
    address: usize,
    path: Option<String>,
}

/// The file that is mapped at an address. Not by dladdr, which also looks for the nearest of all the file's symbols.
fn file_of(address: usize) -> Option<String> {
    let mut search = Search { address, path: None };
    // SAFETY: `visit` gets the search, which outlives the call, and keeps nothing.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut search).cast()) };
    search.path
}

/// # Safety
/// Called by `dl_iterate_phdr` with the search of `file_of`.
unsafe extern "C" fn visit(info: *mut libc::dl_phdr_info, _size: usize, search: *mut c_void) -> c_int {
    // SAFETY: the linker's description of a loaded file, valid during the call; the name is null or a C string.
    unsafe {
        let (info, search) = (&*info, &mut *search.cast::<Search>());
        let contains = |index: usize| {
            let header = &*info.dlpi_phdr.add(index);
            let start = (info.dlpi_addr as usize).wrapping_add(header.p_vaddr as usize);
            header.p_type == libc::PT_LOAD && search.address.wrapping_sub(start) < header.p_memsz as usize
        };
        if info.dlpi_name.is_null() || !(0..info.dlpi_phnum.into()).any(contains) {
            return 0;
        }
        search.path = Some(CStr::from_ptr(info.dlpi_name).to_string_lossy().into_owned());
        1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_known_by_their_file_name() {
        for library in ["/x/libcublas.so.13", "libcufft.so.12", "/a/libcudnn_ops.so.9", "libnccl.so.2"] {
            assert!(is_cuda_library(library), "{library}");
        }
        for other in ["/x/libcudart.so.13", "libcuda.so.1", "/usr/bin/python3", "/libcu/libtorch_cuda.so", ""] {
            assert!(!is_cuda_library(other), "{other}");
        }
    }

    #[test]
    fn an_address_belongs_to_the_file_that_is_mapped_there() {
        let in_libc = file_of(libc::getpid as *const () as usize).unwrap();
        assert!(in_libc.contains("libc.so"), "{in_libc}");
        assert_eq!(file_of(0), None);
        assert!(!is_in_cuda_library(is_in_cuda_library as *const () as usize));
    }
}
