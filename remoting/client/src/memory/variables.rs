//! `__managed__` variables: memory of this process at the address that the device's driver gave the variable.

use super::budget;
use super::host::{self, HostKind, HostRange};
use super::mapped::{self, NoMirror};
use super::pinned;
use crate::Code;
use crate::devices::context::Live;
use crate::program::{log, sys};
use crate::session::lock;
use driverapi::constants::CU_MEM_ATTACH_GLOBAL;
use driverapi::errors::{CUDA_ERROR_NOT_FOUND, CUDA_ERROR_OUT_OF_MEMORY};
use protocol::Symbol;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

const PAGE: usize = 4096;

/// The pages that were put there for variables, and how many variables lie in each.
static PAGES: Mutex<BTreeMap<usize, usize>> = Mutex::new(BTreeMap::new());

fn pages(range: &HostRange) -> impl Iterator<Item = usize> {
    (range.start / PAGE * PAGE..range.start + range.size).step_by(PAGE)
}

/// Puts zeroed pages where the variable lies, unless something else of this process is there.
fn back(range: &HostRange) -> bool {
    let known = &mut *lock(&PAGES);
    for page in pages(range) {
        let variables = known.entry(page).or_default();
        // SAFETY: the page was reserved just now for this purpose.
        if *variables == 0 && !(sys::reserve(page as u64, PAGE as u64) && unsafe { sys::back(page, PAGE) }) {
            known.remove(&page);
            let done = pages(range).take_while(|other| *other < page).collect::<Vec<_>>();
            done.into_iter().for_each(|page| give_up(known, page));
            return false;
        }
        *variables += 1;
    }
    true
}

/// Whether the page of this address was put there for variables.
pub fn has_page(address: usize) -> bool {
    lock(&PAGES).contains_key(&(address / PAGE * PAGE))
}

fn give_up(known: &mut BTreeMap<usize, usize>, page: usize) {
    let Some(variables) = known.get_mut(&page) else { return };
    *variables -= 1;
    if *variables == 0 {
        known.remove(&page);
        // SAFETY: the page is `back`'s, and no variable is left in it.
        unsafe { sys::free_pages(std::ptr::with_exposed_provenance_mut(page), PAGE) };
    }
}

/// Gives up the pages of a variable that nothing uses any more.
pub fn release(range: &HostRange) {
    let known = &mut *lock(&PAGES);
    pages(range).for_each(|page| give_up(known, page));
}

/// Lets the program use a variable at its address from now on, until its module is unloaded.
///
/// # Errors
/// `CUDA_ERROR_NOT_FOUND` with one line if the address is taken in this process, `CUDA_ERROR_OUT_OF_MEMORY` beyond the
/// budget, or the session's sticky error.
pub fn share(live: &Arc<Live>, name: &str, symbol: &Symbol) -> Result<(), Code> {
    let (start, size) = (symbol.address as usize, symbol.size as usize);
    let (context, ordinal, flags) = (live.handle, live.device.ordinal, CU_MEM_ATTACH_GLOBAL);
    let range = HostRange { start, size, flags, kind: HostKind::Variable, context, ordinal };
    if host::find(start) == Some(range) {
        return Ok(());
    }
    if !back(&range) {
        return refuse(name, "its address is taken in this process", CUDA_ERROR_NOT_FOUND);
    }
    pinned::add(live, range).inspect_err(|_| release(&range))?;
    mapped::take_in(live, &range).or_else(|why| {
        end(symbol);
        match why {
            NoMirror::Failed(code) => Err(code),
            NoMirror::Budget { .. } | NoMirror::Elsewhere => {
                let setting = budget::of(range.kind).setting;
                refuse(name, &format!("it is more than {setting} allows"), CUDA_ERROR_OUT_OF_MEMORY)
            }
        }
    })
}

/// Logs why a variable is not available. CUDA's runtime continues without its address.
///
/// # Errors
/// Always.
pub fn refuse(name: &str, why: &str, code: Code) -> Result<(), Code> {
    log::error_unless_repeated(&format!(
        "the __managed__ variable {name} cannot be used, since {why}: the program may crash where it uses it; use \
         cudaMallocManaged instead"
    ));
    Err(code)
}

/// Ends a variable whose module is about to be unloaded.
pub fn end(symbol: &Symbol) {
    // A variable that is not known here was never asked for by the host.
    let _ = pinned::remove(symbol.address as usize, HostKind::Variable, CUDA_ERROR_NOT_FOUND);
}
