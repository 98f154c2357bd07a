//! The names in all units, and the objects to which they refer.

use std::collections::HashMap;

use super::shared::SharedLayout;
use crate::engine::CompileError;
use crate::engine::ptx::ast::Linkage;

/// The object to which a name refers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Symbol {
    Global(u32),
    Function(u32),
    Shared(u32),
    DynamicShared,
}

/// The names in all units.
pub struct Linker<'a> {
    pub units: Vec<HashMap<&'a str, Symbol>>,
    pub external: HashMap<&'a str, Symbol>,
    pub shared: SharedLayout<'a>,
}

impl<'a> Linker<'a> {
    pub fn resolve(&self, unit: usize, name: &str) -> Option<Symbol> {
        self.units[unit].get(name).or_else(|| self.external.get(name)).copied()
    }

    pub fn define(&mut self, unit: usize, name: &'a str, linkage: Linkage, symbol: Symbol) -> Result<(), CompileError> {
        if linkage == Linkage::Internal {
            self.units[unit].insert(name, symbol);
            return Ok(());
        }
        match self.external.entry(name) {
            std::collections::hash_map::Entry::Vacant(entry) => {
                entry.insert(symbol);
            }
            std::collections::hash_map::Entry::Occupied(mut entry) => match linkage {
                Linkage::Weak | Linkage::Common => {}
                // A strong definition replaces a weak one. Two strong definitions were refused earlier.
                _ => {
                    entry.insert(symbol);
                }
            },
        }
        Ok(())
    }
}
