//! Finds the library that makes a call, by the call's return address.
//!
//! NVIDIA's libraries choose their kernels by compute capability. They have machine code for every real device, and PTX
//! only for later devices. Each library contains its own CUDA runtime. A driver that executes PTX can therefore report
//! two capabilities: to these libraries one above all their machine code, and to programs one that suits their
//! compilers.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_int, c_void};
use std::sync::{OnceLock, PoisonError, RwLock};

/// Exports a C function of three integer or pointer arguments. `$body` gets the arguments and the return address of the
/// call as a fourth argument. Only code that has not changed the stack yet can read this address.
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

/// Whether one of NVIDIA's libraries made the call that returns to this address. If the CUDA runtime made the call, its
/// own caller is checked instead.
pub fn is_cuda_library(return_address: usize) -> bool {
    let return_address = behind_recorders(return_address);
    match kind_at(return_address) {
        Kind::Runtime => first_user_of_runtime(return_address) == Some(Kind::Library),
        kind => kind == Kind::Library,
    }
}

/// Whether to refuse the image that contains this address. NCCL's image is refused unless `NCCL_P2P_LEVEL` is SYS.
///
/// A single rank launches none of NCCL's kernels and continues without them. The kernels of several ranks would wait
/// without end in memory that ranks share with the host, which neither remoting nor the software GPU provides. With
/// `NCCL_P2P_LEVEL=SYS` the kernels wait in each other's device memory instead.
#[must_use]
pub fn is_refused_image(address: usize) -> bool {
    is_of_nccl(address) && std::env::var_os("NCCL_P2P_LEVEL").is_none_or(|level| level != "SYS")
}

/// Whether NCCL's code is at this address. When several ranks of one machine connect, they register shared host memory
/// as page-locked memory; a single rank never does. The driver refuses that memory, so the ranks fail at that point.
#[must_use]
pub fn is_of_nccl(address: usize) -> bool {
    file_of(behind_recorders(address)).is_some_and(|path| file_name(&path).starts_with("libnccl"))
}

/// Whether NCCL requests page-locked memory for ranks without access to each other's device memory.
///
/// A service thread of NCCL sends the data of such ranks through sockets. It waits for words that a running kernel
/// writes to this memory, and allocates no other page-locked memory. NCCL names its threads if `NCCL_SET_THREAD_NAME`
/// is 1, which programs on a share get.
#[must_use]
pub fn is_for_distant_ranks(address: usize) -> bool {
    is_of_nccl(address) && this_threads_name().starts_with("NCCL Service")
}

/// Returns the name of the file whose code called this driver, or `None` for code without a file (generated at run
/// time).
#[must_use]
pub fn module_outside() -> Option<String> {
    let path = file_of(first_outside()?)?;
    Some(if path.is_empty() { "the program".into() } else { file_name(&path).into() })
}

/// Returns the return address of the call into the recorder (`remotegpu trace`), if the call came through it. The
/// recorder's file is a libcuda.so.1, too, and the recorder's caller counts.
fn behind_recorders(return_address: usize) -> usize {
    if kind_at(return_address) == Kind::Driver { first_outside().unwrap_or(return_address) } else { return_address }
}

/// Returns the return address of the innermost call on this thread's stack that came from outside drivers.
fn first_outside() -> Option<usize> {
    /// Checks one frame of the stack.
    ///
    /// # Safety
    /// `_Unwind_Backtrace` calls it with a frame and a pointer to an `Option<usize>`.
    unsafe extern "C" fn step(frame: *mut c_void, found: *mut c_void) -> c_int {
        // SAFETY: `found` outlives the backtrace; the frame belongs to the unwinder.
        let (found, address) = unsafe { (&mut *found.cast::<Option<usize>>(), _Unwind_GetIP(frame)) };
        *found = Some(address).filter(|address| kind_at(*address) != Kind::Driver && !is_own(*address));
        if found.is_some() { STOP } else { 0 }
    }
    let mut found = None;
    // SAFETY: `step` keeps no pointer.
    unsafe { _Unwind_Backtrace(step, (&raw mut found).cast()) };
    found
}

/// Whether the address is in the file that contains this code. The file's name does not matter.
fn is_own(address: usize) -> bool {
    static OWN: OnceLock<Option<String>> = OnceLock::new();
    let own = OWN.get_or_init(|| file_of(is_own as *const () as usize));
    file_of(address) == *own
}

/// Returns the kernel's name of this thread. Threads that Rust did not start have one, too.
fn this_threads_name() -> String {
    std::fs::read_to_string("/proc/thread-self/comm").unwrap_or_default()
}

/// The description of NCCL with several ranks, for the error messages of refused calls.
pub const SEVERAL_RANKS: &str = concat!(
    "NCCL among ranks that do not reach each other's GPU memory (its kernels would wait for this machine's CPU; ",
    "for GPUs of one appliance NCCL_P2P_LEVEL has to be SYS, for others use gloo)",
);

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A library that chooses kernels by the compute capability for which its code was compiled.
    Library,
    /// A CUDA runtime (libcudart).
    Runtime,
    /// A libcuda: this one, or the recorder that calls it.
    Driver,
    Other,
}

impl Kind {
    fn of_file(path: &str) -> Kind {
        let name = file_name(path);
        match name {
            _ if name.starts_with("libcudart") => Kind::Runtime,
            _ if name.starts_with("libcuda.so") || name.starts_with("libnvidia-ml.so") => Kind::Driver,
            _ if !name.contains(".so") => Kind::Other,
            _ if name.starts_with("libcu") || name.starts_with("libnccl") => Kind::Library,
            _ => Kind::Other,
        }
    }
}

fn kind_at(address: usize) -> Kind {
    // The key is the address, not the library. There are few calling addresses, and an unloaded library leaves no other
    // call at its addresses.
    static KNOWN: RwLock<BTreeMap<usize, Kind>> = RwLock::new(BTreeMap::new());
    if let Some(kind) = KNOWN.read().unwrap_or_else(PoisonError::into_inner).get(&address) {
        return *kind;
    }
    let kind = file_of(address).map_or(Kind::Other, |path| Kind::of_file(&path));
    KNOWN.write().unwrap_or_else(PoisonError::into_inner).insert(address, kind);
    kind
}

/// Returns the kind of the innermost caller on this thread's stack that is outside the runtime.
fn first_user_of_runtime(return_address: usize) -> Option<Kind> {
    struct Walk {
        return_address: usize,
        inside: bool,
        found: Option<Kind>,
    }
    /// Checks one frame of the stack.
    ///
    /// # Safety
    /// `_Unwind_Backtrace` calls it with a frame and a pointer to a `Walk`.
    unsafe extern "C" fn step(frame: *mut c_void, walk: *mut c_void) -> c_int {
        // SAFETY: `walk` outlives the backtrace; the frame belongs to the unwinder.
        let (walk, address) = unsafe { (&mut *walk.cast::<Walk>(), _Unwind_GetIP(frame)) };
        walk.inside |= address == walk.return_address;
        walk.found = Some(kind_at(address)).filter(|kind| walk.inside && *kind != Kind::Runtime);
        if walk.found.is_some() { STOP } else { 0 }
    }
    let mut walk = Walk { return_address, inside: false, found: None };
    // SAFETY: `step` keeps no pointer.
    unsafe { _Unwind_Backtrace(step, (&raw mut walk).cast()) };
    walk.found
}

/// The unwinder's code for a normal stop.
const STOP: c_int = 4;

unsafe extern "C" {
    fn _Unwind_Backtrace(step: unsafe extern "C" fn(*mut c_void, *mut c_void) -> c_int, data: *mut c_void) -> c_int;
    fn _Unwind_GetIP(frame: *mut c_void) -> usize;
}

/// The input and output of the search in `file_of`.
struct Search {
    address: usize,
    path: Option<String>,
}

/// Returns the path of the file that is mapped at an address. dladdr would be slower: it also searches all symbols of
/// the file.
fn file_of(address: usize) -> Option<String> {
    let mut search = Search { address, path: None };
    // SAFETY: `visit` gets the search, which outlives the call, and keeps no pointer.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut search).cast()) };
    search.path
}

/// Stores the path if the file contains the address.
///
/// # Safety
/// `dl_iterate_phdr` calls it with a pointer to the `Search` of `file_of`.
unsafe extern "C" fn visit(info: *mut libc::dl_phdr_info, _size: usize, search: *mut c_void) -> c_int {
    // SAFETY: `info` is the linker's description of a loaded file and is valid during the call; the name is null or a C
    // string.
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
            assert_eq!(Kind::of_file(library), Kind::Library, "{library}");
        }
        for driver in ["libcuda.so.1", "/x/libcuda.so", "/x/libnvidia-ml.so.1"] {
            assert_eq!(Kind::of_file(driver), Kind::Driver, "{driver}");
        }
        for other in ["libcuda.py", "/usr/bin/python3", "/libcu/libtorch_cuda.so", ""] {
            assert_eq!(Kind::of_file(other), Kind::Other, "{other}");
        }
        assert_eq!(Kind::of_file("/x/libcudart.so.13"), Kind::Runtime);
    }

    #[test]
    fn a_thread_has_the_name_that_it_was_given() {
        let named = std::thread::Builder::new().name("NCCL Service  0".into()).spawn(this_threads_name).unwrap();
        assert_eq!(named.join().unwrap(), "NCCL Service  0\n");
        assert!(!this_threads_name().starts_with("NCCL"));
    }

    #[test]
    fn an_address_belongs_to_the_file_that_is_mapped_there() {
        let in_libc = file_of(libc::getpid as *const () as usize).unwrap();
        assert!(in_libc.contains("libc.so"), "{in_libc}");
        assert_eq!(file_of(0), None);
        assert!(!is_cuda_library(is_cuda_library as *const () as usize));
    }
}
