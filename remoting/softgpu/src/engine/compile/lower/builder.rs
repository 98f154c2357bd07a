//! The state of a function during lowering: the instructions so far, with virtual registers, and the places of its
//! variables.

use std::collections::{HashMap, HashSet};

use crate::engine::code::{CallSite, Inst};
use crate::engine::compile::allocate::Class;
use crate::engine::compile::flow::Flow;
use crate::engine::compile::names::Linker;
use crate::engine::compile::pool::PoolBuilder;
use crate::engine::ptx::Ty;
use crate::engine::ptx::ast::Body;

/// The reason why a form is not supported.
#[derive(Debug, Clone)]
pub struct Refuse(pub String);

pub type Lowering<T = ()> = Result<T, Refuse>;

pub fn refuse<T>(why: impl Into<String>) -> Lowering<T> {
    Err(Refuse(why.into()))
}

/// The location of a function's variable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    Param(u32),
    Shared(u32),
    DynamicShared,
    Local(u32),
    Nowhere,
}

pub struct Lower<'s, 'a> {
    pub linker: &'s Linker<'a>,
    pub unit: usize,
    pub entry: bool,
    pub pool: &'s mut PoolBuilder,
    pub body: &'s Body<'a>,
    pub places: Vec<Place>,
    pub classes: Vec<Class>,
    pub insts: Vec<Inst>,
    pub lines: Vec<u32>,
    pub flow: Vec<Flow>,
    pub lists: Vec<u32>,
    pub calls: Vec<CallSite>,
    pub edges: HashSet<u32>,
    /// Whether the function contains a barrier.
    pub barriers: bool,
    /// Whether the function reads its position in a cluster or waits for the cluster's other threads.
    pub clusters: bool,
    pub heap: bool,
    /// The two halves of each 128-bit register, low half first.
    pub halves: HashMap<u32, [u32; 2]>,
    /// The predicate that holds the carry of `.cc` instructions.
    pub carry: Option<u32>,
    pub guard: u32,
    pub line: u32,
}

pub fn class(ty: Ty) -> Class {
    match ty {
        Ty::Pred => Class::Pred,
        Ty::B128 => Class::Wide,
        _ if ty.bytes() == 8 => Class::Double,
        _ => Class::Word,
    }
}

/// Whether values of the type need 64-bit lanes.
pub fn double(ty: Ty) -> bool {
    ty.bytes() == 8
}

impl Lower<'_, '_> {
    pub fn temp(&mut self, ty: Ty) -> u32 {
        self.classes.push(class(ty));
        self.classes.len() as u32 - 1
    }

    pub fn emit(&mut self, inst: Inst) {
        self.emit_flow(inst, Flow::Next);
    }

    pub fn emit_flow(&mut self, mut inst: Inst, flow: Flow) {
        inst.guard = self.guard;
        self.push(inst, flow);
    }

    /// Emits an unguarded instruction that computes a temporary. Without a guard the temporary's live range is shorter.
    pub fn emit_free(&mut self, inst: Inst) {
        self.push(inst, Flow::Next);
    }

    fn push(&mut self, inst: Inst, flow: Flow) {
        self.insts.push(inst);
        self.lines.push(self.line);
        self.flow.push(flow);
    }

    pub fn carry(&mut self) -> u32 {
        if let Some(carry) = self.carry {
            return carry;
        }
        let carry = self.temp(Ty::Pred);
        self.carry = Some(carry);
        carry
    }

    pub fn class_of(&self, reg: u32) -> Class {
        self.classes[reg as usize]
    }

    pub fn place(&self, var: u32) -> Place {
        self.places[var as usize]
    }
}
