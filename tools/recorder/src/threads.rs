//! Names for threads that are the same in every run: the parent's name, the file that contains the thread's function,
//! and a count.
//!
//! This library is preloaded before the C library, so that it intercepts every `pthread_create`.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ffi::{CStr, c_int, c_void};
use std::mem::MaybeUninit;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

// A value without a destructor is valid until the end of a thread, and programs call the driver until then.
thread_local! {
    static NAME: Cell<Option<&'static str>> = const { Cell::new(None) };
    static MADE: Cell<Option<&'static RefCell<HashMap<String, u64>>>> = const { Cell::new(None) };
    /// The number of driver calls that this thread is in. A thread that is created inside such a call belongs to the
    /// driver.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

static OTHERS: AtomicU64 = AtomicU64::new(0);
/// The prefix of the names of threads whose creation was not intercepted. They are numbered in the order of their first
/// calls.
pub const OTHER: &str = "other ";

/// Runs a call of the driver. Returns the result of `call`, and whether it ran inside another call of the driver.
pub fn inside<T>(call: impl FnOnce() -> T) -> (T, bool) {
    let depth = DEPTH.replace(DEPTH.get() + 1);
    let result = call();
    DEPTH.set(depth);
    (result, depth > 0)
}

/// Returns the calling thread's name.
pub fn name() -> &'static str {
    let known = NAME.get().or_else(first);
    let other = || format!("{OTHER}{}", OTHERS.fetch_add(1, Ordering::Relaxed) + 1).leak();
    let name = known.unwrap_or_else(|| other());
    NAME.set(Some(name));
    name
}

fn first() -> Option<&'static str> {
    // SAFETY: two queries without preconditions.
    unsafe { libc::gettid() == libc::getpid() }.then_some("main")
}

/// Returns a number that no other live thread has.
pub fn number() -> u64 {
    // SAFETY: the function has no preconditions.
    unsafe { libc::pthread_self() }
}

type Start = unsafe extern "C-unwind" fn(*mut c_void) -> *mut c_void;
type Create = unsafe extern "C" fn(*mut libc::pthread_t, *const libc::pthread_attr_t, Start, *mut c_void) -> c_int;

struct Named {
    name: &'static str,
    start: Start,
    argument: *mut c_void,
}

/// Replaces `pthread_create` of the C library, to give names to the threads that the program creates.
///
/// # Safety
/// The same conditions as for the C library's function with this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_create(
    thread: *mut libc::pthread_t,
    attributes: *const libc::pthread_attr_t,
    start: Start,
    argument: *mut c_void,
) -> c_int {
    static NEXT: OnceLock<Option<Create>> = OnceLock::new();
    // SAFETY: the next function with this name is that of the C library.
    let next = NEXT.get_or_init(|| unsafe {
        std::mem::transmute::<*mut c_void, Option<Create>>(libc::dlsym(libc::RTLD_NEXT, c"pthread_create".as_ptr()))
    });
    let Some(next) = next else { return libc::ENOSYS };
    let parent = NAME.get().or_else(first);
    let Some(parent) = parent.filter(|_| DEPTH.get() == 0) else {
        // SAFETY: the caller guarantees the conditions of `pthread_create`.
        return unsafe { next(thread, attributes, start, argument) };
    };
    let named = Box::into_raw(Box::new(Named { name: child(parent, start), start, argument }));
    // SAFETY: the caller guarantees the conditions of `pthread_create`. If the thread starts, `run` owns the box.
    unsafe {
        let code = next(thread, attributes, run, named.cast());
        if code != 0 {
            drop(Box::from_raw(named));
        }
        code
    }
}

/// Runs a new thread: sets its name, and then calls the program's function.
///
/// # Safety
/// `named` must be a box of `pthread_create`, and only the new thread may call this.
unsafe extern "C-unwind" fn run(named: *mut c_void) -> *mut c_void {
    // SAFETY: the caller guarantees it (see "# Safety").
    let Named { name, start, argument } = *unsafe { Box::from_raw(named.cast::<Named>()) };
    NAME.set(Some(name));
    // SAFETY: the program passed this function to run in a new thread. No value is left to drop, so the thread may end
    // by unwinding.
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
    // SAFETY: any address is allowed. The answer's name is a C string of the loader.
    let path = unsafe {
        if libc::dladdr(start as *const c_void, info.as_mut_ptr()) == 0 {
            return "unknown".into();
        }
        CStr::from_ptr(info.assume_init().dli_fname).to_string_lossy()
    };
    path.rsplit('/').next().unwrap_or_default().to_owned()
}
