//! The real driver: the one that the program would have loaded without the recorder.

use crate::registers::Arguments;
use crate::signature::{Table, place_of};
use driverapi::errors::CUDA_ERROR_NOT_FOUND;
use std::collections::HashMap;
use std::ffi::{CString, c_void};
use std::path::{Path, PathBuf};

/// The folders in which the driver is searched after those of `LD_LIBRARY_PATH` (Debian, Red Hat, containers with
/// NVIDIA's toolkit, WSL).
const USUAL: [&str; 5] =
    ["/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/local/nvidia/lib64", "/usr/lib/wsl/lib", "/usr/lib"];
const NAME: &str = "libcuda.so.1";

pub struct Below {
    pub path: PathBuf,
    pub table: Table,
    /// The addresses of the driver's functions, by index in the table. 0 if the driver does not have the function.
    addresses: Vec<usize>,
    places: HashMap<usize, Vec<usize>>,
}

impl Below {
    /// Finds the real driver and loads it.
    ///
    /// # Errors
    /// A message of one sentence, if there is no driver or it cannot be loaded.
    pub fn open(table: Table) -> Result<Self, String> {
        let path = find()?;
        let name = CString::new(path.as_os_str().as_encoded_bytes()).map_err(|error| error.to_string())?;
        // SAFETY: loading a driver runs its constructors, as it would without this library.
        let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if library.is_null() {
            return Err(format!("the driver {} cannot be loaded: is it a library for this machine?", path.display()));
        }
        let address = |symbol: &str| {
            // SAFETY: a live handle and a C string.
            CString::new(symbol).map_or(0, |name| unsafe { libc::dlsym(library, name.as_ptr()) } as usize)
        };
        let addresses: Vec<usize> = table.iter().map(|function| address(function.symbol)).collect();
        let mut places: HashMap<usize, Vec<usize>> = HashMap::new();
        for (place, address) in addresses.iter().enumerate().filter(|(_, address)| **address != 0) {
            places.entry(*address).or_default().push(place);
        }
        Ok(Self { path, table, addresses, places })
    }

    pub fn address(&self, place: usize) -> Option<*const c_void> {
        Some(self.addresses[place]).filter(|address| *address != 0).map(|address| address as *const c_void)
    }

    /// Calls a function of the driver. Returns `CUDA_ERROR_NOT_FOUND` if the driver does not have the function.
    pub fn forward(&self, place: usize, arguments: &Arguments) -> u32 {
        match self.address(place) {
            // SAFETY: the function that the program called, with the program's arguments.
            Some(target) => unsafe { arguments.call(target) },
            None => {
                eprintln!("remotegpu: trace: the driver {} has no {}", self.path.display(), self.table[place].symbol);
                CUDA_ERROR_NOT_FOUND
            }
        }
    }

    pub fn named(&self, symbol: &str) -> Option<*const c_void> {
        self.address(place_of(self.table, symbol)?)
    }

    /// Returns the table index of the driver's function at `address`, which was requested under this base name.
    pub fn place_at(&self, address: u64, base: &str) -> Option<usize> {
        let places = self.places.get(&(address as usize))?;
        places.iter().find(|place| self.table[**place].symbol.starts_with(base)).or(places.first()).copied()
    }
}

fn find() -> Result<PathBuf, String> {
    if let Some(path) = std::env::var_os("REMOTEGPU_TRACE_DRIVER") {
        return Ok(path.into());
    }
    let ours = own_path();
    let listed = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let folders = std::env::split_paths(&listed).chain(USUAL.iter().map(PathBuf::from));
    let other = |path: &Path| path.canonicalize().is_ok_and(|real| Some(real) != ours);
    folders.map(|folder| folder.join(NAME)).find(|path| other(path)).ok_or_else(|| {
        format!(
            "there is no {NAME} below the recorder: run inside `remotegpu run`, or name one in REMOTEGPU_TRACE_DRIVER"
        )
    })
}

fn own_path() -> Option<PathBuf> {
    let mut info = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: an address in this library. The answer's name is a C string of the loader.
    unsafe {
        if libc::dladdr(own_path as *const c_void, info.as_mut_ptr()) == 0 {
            return None;
        }
        let name = std::ffi::CStr::from_ptr(info.assume_init().dli_fname);
        Path::new(name.to_str().ok()?).canonicalize().ok()
    }
}
