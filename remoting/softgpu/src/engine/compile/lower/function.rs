//! Lowering of one function, from its body to code with slots.

use std::collections::{HashMap, HashSet};

use super::builder::{Lower, Lowering, Place, Refuse, class, refuse};
use crate::engine::code::{CallSite, FunctionInfo, Inst, NONE, NOT};
use crate::engine::compile::allocate::allocate;
use crate::engine::compile::decode;
use crate::engine::compile::flow::{Flow, blocks, order};
use crate::engine::compile::names::Linker;
use crate::engine::compile::pool::PoolBuilder;
use crate::engine::compile::shared::parameter_layout;
use crate::engine::exec::{control, exec};
use crate::engine::ptx::ast::{Body, Function, Instr, VarSpace};

/// The maximum number of bits in a liveness table. A larger function is refused.
const MAX_TABLE_BITS: usize = 1 << 32;

/// The meaning of the number in `imm` of a lowered instruction. It is adjusted when functions are joined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Index {
    Nothing,
    Pc,
    Table,
    Call,
}

/// A lowered function. Its indices into code, lists, tables and calls are relative to the function.
pub struct Lowered {
    pub info: FunctionInfo,
    pub insts: Vec<Inst>,
    pub indices: Vec<Index>,
    pub lines: Vec<u32>,
    pub lists: Vec<u32>,
    pub tables: Vec<u32>,
    pub calls: Vec<CallSite>,
    /// The functions that this function calls, or whose addresses it takes.
    pub edges: HashSet<u32>,
    pub barriers: bool,
    pub clusters: bool,
    pub heap: bool,
}

/// Lowers a function. An error contains the line and the unsupported form.
pub fn lower<'a>(
    linker: &Linker<'a>,
    unit: usize,
    index: usize,
    function: &Function<'a>,
    pool: &mut PoolBuilder,
) -> Lowering<Lowered> {
    let empty = Body::default();
    let body = function.body.as_ref().unwrap_or(&empty);
    let (places, local_bytes, params, returns) = place_variables(linker, unit, index, function, body)?;
    let mut lower = Lower {
        linker,
        unit,
        entry: function.entry,
        pool,
        body,
        places,
        classes: body.regs.iter().map(|&ty| class(ty)).collect(),
        insts: Vec::new(),
        lines: Vec::new(),
        flow: Vec::new(),
        lists: Vec::new(),
        calls: Vec::new(),
        edges: HashSet::new(),
        barriers: false,
        clusters: false,
        heap: false,
        halves: HashMap::new(),
        carry: None,
        guard: NONE,
        line: 0,
    };
    let mut starts = Vec::with_capacity(body.instrs.len() + 1);
    for instr in &body.instrs {
        starts.push(lower.insts.len());
        lower.instruction(instr).map_err(|Refuse(why)| {
            let text = std::iter::once(&instr.op).chain(&instr.mods).copied().collect::<Vec<_>>().join(".");
            Refuse(format!("'{}', line {}: {text}: {why}", function.name, instr.line))
        })?;
    }
    starts.push(lower.insts.len());
    // A function returns if control reaches its end.
    lower.guard = NONE;
    lower.emit_flow(Inst::new(exec::<control::Ret>()), Flow::Stop);
    let labels: Vec<usize> = body.labels.iter().map(|&at| starts[at]).collect();
    let info =
        FunctionInfo { name: function.name.to_owned(), entry_pc: 0, slots: 0, preds: 0, local_bytes, params, returns };
    lower.finish(&labels, info)
}

type Variables = (Vec<Place>, u32, Vec<(u32, u32)>, Vec<(u32, u32)>);

fn place_variables(
    linker: &Linker,
    unit: usize,
    index: usize,
    function: &Function,
    body: &Body,
) -> Lowering<Variables> {
    let (layout, _) = parameter_layout(function);
    let (returns, params) = (function.returns.len(), function.params.len());
    let mut local = 0u64;
    let mut places = Vec::with_capacity(body.vars.len());
    for (number, var) in body.vars.iter().enumerate() {
        let formal = number.checked_sub(returns).filter(|&at| at < params);
        places.push(match var.space {
            VarSpace::Param if function.entry && formal.is_some() => Place::Param(layout[number - returns].0),
            VarSpace::Param | VarSpace::Local => {
                let offset = local.next_multiple_of(var.align.into());
                local = offset + var.size;
                if local > crate::engine::MAX_LOCAL.into() {
                    return refuse(format!("'{}' needs {local} bytes of local memory", function.name));
                }
                Place::Local(offset as u32)
            }
            VarSpace::Shared if linker.shared.is_dynamic(var) => Place::DynamicShared,
            VarSpace::Shared => linker.shared.inner_offset(unit, index, number).map_or(Place::Nowhere, Place::Shared),
            VarSpace::Reg => return refuse(format!("'{}' has register parameters", function.name)),
            VarSpace::Global | VarSpace::Const => Place::Nowhere,
        });
    }
    let formals = |range: std::ops::Range<usize>| {
        range
            .filter_map(|at| match places[at] {
                Place::Local(offset) => Some((offset, body.vars[at].size as u32)),
                _ => None,
            })
            .collect()
    };
    let formal_count = if body.vars.is_empty() { 0 } else { returns + params };
    let (returned, taken) = (formals(0..returns.min(formal_count)), formals(returns.min(formal_count)..formal_count));
    Ok((places, (local as u32).next_multiple_of(16), taken, returned))
}

impl<'a> Lower<'_, 'a> {
    fn instruction(&mut self, instr: &Instr<'a>) -> Lowering {
        self.line = instr.line;
        self.guard = match instr.guard {
            Some((reg, negated)) => reg | if negated { NOT } else { 0 },
            None => NONE,
        };
        decode::instruction(self, instr)
    }

    /// Allocates registers and puts the blocks in order.
    fn finish(mut self, labels: &[usize], mut info: FunctionInfo) -> Lowering<Lowered> {
        let blocks = blocks(&self.flow, |index| self.insts[index].guard != NONE, labels);
        if blocks.len().saturating_mul(self.classes.len()) > MAX_TABLE_BITS {
            return refuse(format!("'{}' is too large", info.name));
        }
        let order = order(&blocks);
        let frame = allocate(&mut self.insts, &mut self.lists, &blocks, &order, &self.classes);
        (info.slots, info.preds) = (frame.slots, frame.preds);

        let (mut insts, mut lines, mut sources) = (Vec::new(), Vec::new(), Vec::new());
        let mut start = vec![0u32; blocks.len()];
        let mut jumps = Vec::new();
        for (position, &block) in order.iter().enumerate() {
            start[block] = insts.len() as u32;
            for index in blocks[block].start..blocks[block].end {
                insts.push(self.insts[index].clone());
                lines.push(self.lines[index]);
                sources.push(index);
            }
            if let Some(next) = blocks[block].next
                && order.get(position + 1) != Some(&next)
            {
                jumps.push((insts.len(), next));
                insts.push(Inst::new(exec::<control::Branch>()));
                lines.push(self.lines[blocks[block].end - 1]);
                sources.push(usize::MAX);
            }
        }
        let block_at = |label: u32| blocks.partition_point(|block| block.start <= labels[label as usize]) - 1;
        let mut indices = vec![Index::Nothing; insts.len()];
        for (at, next) in jumps {
            insts[at].imm = start[next].into();
            indices[at] = Index::Pc;
        }
        let mut tables = Vec::new();
        for (at, &source) in sources.iter().enumerate() {
            match self.flow.get(source) {
                Some(Flow::Branch(label)) => {
                    insts[at].imm = start[block_at(*label)].into();
                    indices[at] = Index::Pc;
                }
                Some(Flow::Table(targets)) => {
                    insts[at].imm = tables.len() as i64;
                    indices[at] = Index::Table;
                    tables.extend(targets.iter().map(|&label| start[block_at(label)]));
                }
                Some(Flow::Call) => indices[at] = Index::Call,
                _ => {}
            }
        }
        Ok(Lowered {
            info,
            insts,
            indices,
            lines,
            lists: self.lists,
            tables,
            calls: self.calls,
            edges: self.edges,
            barriers: self.barriers,
            clusters: self.clusters,
            heap: self.heap,
        })
    }
}
