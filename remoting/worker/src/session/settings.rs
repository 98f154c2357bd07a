//! The settings of kernels. A launch that has to wait runs with the settings at its arrival. The driver stores only one
//! value of a setting, so settings are applied again before launches that came before a change, and again after them.

use crate::driver::{Driver, Handle, Result};
use protocol::{Reader, function};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Setting {
    /// A setting by its `CUfunction_attribute`.
    Attribute(u32),
    CacheConfig,
    SharedMemConfig,
}

/// All settings that the program has changed, with their values.
pub type Settings = Rc<BTreeMap<Setting, i32>>;

/// A decoded call that changes a setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change {
    pub module: u64,
    pub kernel: u32,
    pub setting: Setting,
    pub value: i32,
}

impl Change {
    /// Decodes a call. Returns `None` if the call changes no setting or is malformed.
    pub fn read(number: u32, payload: &[u8]) -> Option<Change> {
        let mut r = Reader::new(payload);
        let (module, kernel) = (r.get().ok()?, r.get().ok()?);
        let setting = match number {
            function::CU_FUNC_SET_ATTRIBUTE => Setting::Attribute(r.get().ok()?),
            function::CU_FUNC_SET_CACHE_CONFIG => Setting::CacheConfig,
            function::CU_FUNC_SET_SHARED_MEM_CONFIG => Setting::SharedMemConfig,
            _ => return None,
        };
        Some(Change { module, kernel, setting, value: r.get().ok()? })
    }
}

fn set(driver: &Driver, kernel: Handle, setting: Setting, value: i32) -> Result<()> {
    match setting {
        Setting::Attribute(attribute) => driver.set_function_attribute(kernel, attribute, value),
        Setting::CacheConfig => driver.set_function_cache_config(kernel, value as u32),
        Setting::SharedMemConfig => driver.set_function_shared_mem_config(kernel, value as u32),
    }
}

/// The settings of one kernel.
#[derive(Debug, Default)]
pub struct KernelSettings {
    /// The settings for the next launch that arrives.
    wanted: Settings,
    /// The settings that the driver has.
    applied: RefCell<Settings>,
    /// The original value of each changed setting.
    initial: BTreeMap<Setting, i32>,
}

impl KernelSettings {
    pub fn wanted(&self) -> &Settings {
        &self.wanted
    }

    /// Gives the driver the settings that differ from those that it has. The kernel's context must be current.
    ///
    /// # Errors
    /// The driver's error for a value that it had accepted before.
    pub fn apply(&self, driver: &Driver, kernel: Handle, settings: &Settings) -> Result<()> {
        if Rc::ptr_eq(&self.applied.borrow(), settings) {
            return Ok(());
        }
        let applied = Rc::clone(&self.applied.borrow());
        for (setting, initial) in &self.initial {
            let value = |of: &Settings| of.get(setting).copied().unwrap_or(*initial);
            if value(&applied) != value(settings) {
                set(driver, kernel, *setting, value(settings))?;
            }
        }
        *self.applied.borrow_mut() = Rc::clone(settings);
        Ok(())
    }

    /// Stores the value of a setting before its first change. The kernel's context must be current.
    pub fn note_initial(&mut self, driver: &Driver, kernel: Handle, setting: Setting) {
        let ask = || match setting {
            Setting::Attribute(attribute) => driver.function_attribute(kernel, attribute).unwrap_or(0),
            // The driver has no query for these settings. 0 means no preference.
            Setting::CacheConfig | Setting::SharedMemConfig => 0,
        };
        self.initial.entry(setting).or_insert_with(ask);
    }

    /// Stores a value that the driver has accepted.
    pub fn note(&mut self, setting: Setting, value: i32) {
        let mut settings = BTreeMap::clone(&self.wanted);
        settings.insert(setting, value);
        self.wanted = Rc::new(settings);
        *self.applied.borrow_mut() = Rc::clone(&self.wanted);
    }
}
