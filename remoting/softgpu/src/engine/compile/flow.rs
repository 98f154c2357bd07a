//! Control flow: basic blocks and their order in the code.
//!
//! The interpreter runs the group of lanes with the lowest pc first, so the order decides where lanes converge. The
//! order is a reverse post-order in which the exits of a loop come after its body.

/// The way in which control leaves an instruction. A guarded instruction may also continue with the next one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Flow {
    Next,
    /// Continue with the next instruction. The instruction refers to a call site.
    Call,
    Branch(u32),
    Table(Vec<u32>),
    Stop,
}

#[derive(Debug, Clone, Default)]
pub struct BasicBlock {
    pub start: usize,
    pub end: usize,
    /// The block to which control falls through.
    pub next: Option<usize>,
    pub branches: Vec<usize>,
}

impl BasicBlock {
    pub fn successors(&self) -> impl Iterator<Item = usize> + '_ {
        self.next.into_iter().chain(self.branches.iter().copied())
    }
}

/// Splits instructions into blocks. `labels[i]` is the index of the instruction after label `i`.
pub fn blocks(flow: &[Flow], guarded: impl Fn(usize) -> bool, labels: &[usize]) -> Vec<BasicBlock> {
    let count = flow.len();
    let mut leader = vec![false; count + 1];
    leader[0] = true;
    for (index, flow) in flow.iter().enumerate() {
        match flow {
            Flow::Next | Flow::Call => continue,
            Flow::Branch(label) => leader[labels[*label as usize]] = true,
            Flow::Table(targets) => targets.iter().for_each(|&label| leader[labels[label as usize]] = true),
            Flow::Stop => {}
        }
        leader[index + 1] = true;
    }
    let mut block_of = vec![0; count + 1];
    let mut blocks: Vec<BasicBlock> = Vec::new();
    for index in 0..count {
        if leader[index] {
            blocks.push(BasicBlock { start: index, end: index, ..BasicBlock::default() });
        }
        block_of[index] = blocks.len() - 1;
        blocks.last_mut().expect("instruction 0 leads a block").end = index + 1;
    }
    for number in 0..blocks.len() {
        let last = blocks[number].end - 1;
        let target = |label: u32| block_of[labels[label as usize]];
        let (falls, branches) = match &flow[last] {
            Flow::Next | Flow::Call => (true, Vec::new()),
            Flow::Branch(label) => (guarded(last), vec![target(*label)]),
            Flow::Table(targets) => (guarded(last), targets.iter().map(|&label| target(label)).collect()),
            Flow::Stop => (guarded(last), Vec::new()),
        };
        blocks[number].next = (falls && number + 1 < blocks.len()).then_some(number + 1);
        blocks[number].branches = branches;
    }
    blocks
}

/// Returns the layout order, a reverse post-order of the reachable blocks. Of two successors, the one that is later in
/// the text is visited first and so placed later, because compilers put loop exits after loop bodies.
pub fn order(blocks: &[BasicBlock]) -> Vec<usize> {
    let mut visited = vec![false; blocks.len()];
    let mut post = Vec::with_capacity(blocks.len());
    let sorted = |block: usize| {
        let mut successors: Vec<usize> = blocks[block].successors().collect();
        // Successors are popped from the end, so the one that is latest in the text comes first.
        successors.sort_unstable();
        successors
    };
    let mut stack = vec![(0, sorted(0))];
    visited[0] = true;
    while let Some((block, pending)) = stack.last_mut() {
        match pending.pop() {
            Some(next) if !visited[next] => {
                visited[next] = true;
                stack.push((next, sorted(next)));
            }
            Some(_) => {}
            None => {
                post.push(*block);
                stack.pop();
            }
        }
    }
    post.reverse();
    post
}
