//! Names of threads that are the same in every run: the parent, the file of the thread's function, and a count.
//!
//! Preloaded, this library comes before the C library, so that every `pthread_create` passes here.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ffi::{CStr, c_int, c_void};
use std::mem::MaybeUninit;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

// A value without a destructor can be used to the very end of a thread, and programs call the driver there.
thread_local! {
    static NAME: Cell<Option<&'static str>> = const { Cell::new(None) };
    static MADE: Cell<Option<&'static RefCell<HashMap<String, u64>>>> = const { Cell::new(None) };
    /// How many calls of the driver this thread is in: the threads that they make are the driver's.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

static OTHERS: AtomicU64 = AtomicU64::new(0);
/// The prefix of names of threads whose creation was not seen; they are numbered as they come.
pub const OTHER: &str = "other ";

/// Runs a call of the driver. Returns its result, and whether it is inside another one.
pub fn inside<T>(call: impl FnOnce() -> T) -> (T, bool) {
    let depth = DEPTH.replace(DEPTH.get() + 1);
    let result = call();
    DEPTH.set(depth);
    (result, depth > 0)
}

/// The calling thread's name.
pub fn name() -> &'static str {
    let known = NAME.get().or_else(first);
    let other = || format!("{OTHER}{}", OTHERS.fetch_add(1, Ordering::Relaxed) + 1).leak();
    let name = known.unwrap_or_else(|| other());
    NAME.set(Some(name));
    name
}

fn first() -> Option<&'static str> {
    // SAFETY: two plain questions to the kernel.
    unsafe { libc::gettid() == libc::getpid() }.then_some("main")
}

/// A number that distinguishes this thread from the others that live.
pub fn number() -> u64 {
    // SAFETY: no preconditions.
    unsafe { libc::pthread_self() }
}

type Start = unsafe extern "C-unwind" fn(*mut c_void) -> *mut c_void;
type Create = unsafe extern "C" fn(*mut libc::pthread_t, *const libc::pthread_attr_t, Start, *mut c_void) -> c_int;

struct Named {
    name: &'static str,
    start: Start,
    argument: *mut c_void,
}

/// # Safety
/// As the C library's function of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_create(
    thread: *mut libc::pthread_t,
    attributes: *const libc::pthread_attr_t,
    start: Start,
    argument: *mut c_void,
) -> c_int {
    static NEXT: OnceLock<Option<Create>> = OnceLock::new();
    // SAFETY: the next function of this name is the C library's.
    let next = NEXT.get_or_init(|| unsafe {
        std::mem::transmute::<*mut c_void, Option<Create>>(libc::dlsym(libc::RTLD_NEXT, c"pthread_create".as_ptr()))
    });
    let Some(next) = next else { return libc::ENOSYS };
    let parent = NAME.get().or_else(first);
    let Some(parent) = parent.filter(|_| DEPTH.get() == 0) else {
        // SAFETY: as the caller promises.
        return unsafe { next(thread, attributes, start, argument) };
    };
    let named = Box::into_raw(Box::new(Named { name: child(parent, start), start, argument }));
    // SAFETY: as the caller promises; the box is `run`'s if there will be a thread.
    unsafe {
        let code = next(thread, attributes, run, named.cast());
        if code != 0 {
            drop(Box::from_raw(named));
        }
        code
    }
}

/// # Safety
/// Given a box of `pthread_create`.
unsafe extern "C-unwind" fn run(named: *mut c_void) -> *mut c_void {
    // SAFETY: as promised.
    let Named { name, start, argument } = *unsafe { Box::from_raw(named.cast::<Named>()) };
    NAME.set(Some(name));
    // SAFETY: the thread that the program asked for. Nothing is left to drop: it may end by unwinding.
    unsafe { start(argument) }
}

fn child(parent: &str, start: Start) -> &'static str {
    let file = file_of(start);
    let made = MADE.get().unwrap_or_else(|| Box::leak(Box::default()));
    MADE.set(Some(made));
    let mut made = made.borrow_mut();
    let made = made.entry(file.clone()).or_default();
    *made += 1;
    format!("{parent}/{file}:{made}").leak()
}

fn file_of(start: Start) -> String {
    let mut info = MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: an address; the answer's name is a C string of the loader's.
    let path = unsafe {
        if libc::dladdr(start as *const c_void, info.as_mut_ptr()) == 0 {
            return "unknown".into();
        }
        CStr::from_ptr(info.assume_init().dli_fname).to_string_lossy()
    };
    path.rsplit('/').next().unwrap_or_default().to_owned()
}
