//! `__managed__` variables: memory of this process at the address that the device's driver chose for the variable.

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

/// The pages that this module mapped, and the number of variables in each.
static PAGES: Mutex<BTreeMap<usize, usize>> = Mutex::new(BTreeMap::new());

fn pages(range: &HostRange) -> impl Iterator<Item = usize> {
    (range.start / PAGE * PAGE..range.start + range.size).step_by(PAGE)
}

/// Maps zeroed pages at the variable's address. Returns false if this process already uses a page there.
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

/// Returns whether this module mapped the page that contains the address.
pub fn has_page(address: usize) -> bool {
    lock(&PAGES).contains_key(&(address / PAGE * PAGE))
}

fn give_up(known: &mut BTreeMap<usize, usize>, page: usize) {
    let Some(variables) = known.get_mut(&page) else { return };
    *variables -= 1;
    if *variables == 0 {
        known.remove(&page);
        // SAFETY: the page was mapped by `back`, and no variable is left in it.
        unsafe { sys::free_pages(std::ptr::with_exposed_provenance_mut(page), PAGE) };
    }
}

/// Frees the pages of a variable that nothing uses any more.
pub fn release(range: &HostRange) {
    let known = &mut *lock(&PAGES);
    pages(range).for_each(|page| give_up(known, page));
}

/// Lets the program use a variable at its address until the variable's module is unloaded.
///
/// # Errors
/// `CUDA_ERROR_NOT_FOUND` with a logged message if this process already uses the address, `CUDA_ERROR_OUT_OF_MEMORY`
/// beyond the budget, or the session's sticky error.
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

/// Logs why a variable is not available, and returns `code` as an error. CUDA's runtime continues without the variable.
///
/// # Errors
/// Always `code`.
pub fn refuse(name: &str, why: &str, code: Code) -> Result<(), Code> {
    log::error_unless_repeated(&format!(
        "the __managed__ variable {name} cannot be used, since {why}: the program may crash where it uses it; use \
         cudaMallocManaged instead"
    ));
    Err(code)
}

/// Removes a variable whose module is about to be unloaded.
pub fn end(symbol: &Symbol) {
    // The host never used a variable that is not found, so the error is ignored.
    let _ = pinned::remove(symbol.address as usize, HostKind::Variable, CUDA_ERROR_NOT_FOUND);
}
