//! Execution of one kernel: its blocks run in increasing order on one or more OS threads.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::compile::MAX_SHARED;
use super::computing::computing;
use super::exec::{Block, Host, LANES, Launch, Turn};
use super::heap::Heap;
use super::watch::Watch;
use super::{Fault, Image, MemoryMap, Output, Textures, ThreadPool};

/// A kernel launch with the parameters of `cuLaunchKernel`.
pub struct LaunchSpec<'a> {
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub dynamic_shared: u32,
    pub params: &'a [u8],
    pub textures: &'a Textures,
    /// Whether all blocks may wait for each other. Then all blocks are in progress at the same time.
    pub cooperative: bool,
    /// The maximum number of OS threads. With 1, the blocks run in a fixed increasing order.
    pub threads: usize,
    /// The observer of accesses to global memory.
    pub watch: Option<&'a dyn Watch>,
}

/// The duration after which a launch gets helper threads. A shorter launch runs on the calling thread only.
const ALONE: Duration = Duration::from_micros(50);
/// The number of turns after which a block may be waiting for a block that has not started. Then the next block is
/// started too, so that such kernels make progress on any number of OS threads. It is a count and not a time, so the
/// order of blocks on one OS thread is always the same.
const PATIENCE: u32 = 2000;
/// The maximum number of threads in a team of blocks.
const TEAM: u64 = 1024;
/// The maximum number of blocks that one OS thread keeps in progress.
const MAX_RESIDENT: usize = 256;
/// The number of backward branches in a turn. It is small, so a spinning group soon lets the group that it waits for
/// run.
const TURN: u32 = 512;
/// The number of backward branches in a turn of a cooperative launch. Most turns are spent spinning while all blocks
/// wait for the last one.
const COOPERATIVE_TURN: u32 = 32;

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// Runs a kernel until it ends, faults, or `cancel` is set. In the last case the fault has code 702.
pub fn launch(
    image: &Image,
    kernel: usize,
    spec: &LaunchSpec,
    memory: &MemoryMap,
    pool: &ThreadPool,
    out: &dyn Output,
    cancel: &AtomicBool,
) -> Result<(), Fault> {
    let Some(info) = image.program().kernels().get(kernel) else {
        return Err(Fault { code: 400, message: format!("there is no kernel {kernel}") });
    };
    if let Some(text) = &info.unsupported {
        return Err(Fault { code: 218, message: text.clone() });
    }
    let threads = spec.block.iter().map(|&n| u64::from(n)).product::<u64>();
    let blocks = spec.grid.iter().try_fold(1u64, |all, &n| all.checked_mul(n.into())).unwrap_or(0);
    let shared = u64::from(info.static_shared) + u64::from(spec.dynamic_shared);
    let params = spec.params.len() < info.param_bytes as usize;
    if threads == 0 || blocks == 0 || threads > 1024 || params || shared > MAX_SHARED.into() {
        return Err(Fault { code: 1, message: format!("kernel '{}' cannot be launched like this", info.name) });
    }
    let function = image.program().kernel_function(kernel);
    let workspace = if spec.cooperative { grid_workspace(image.heap(), memory) } else { 0 };
    if spec.cooperative && workspace == 0 {
        let message = format!("the heap of kernel '{}' is full: no memory for the grid's barrier", info.name);
        return Err(Fault { code: 2, message });
    }
    let launch = Launch {
        code: image.program().code(),
        consts: image.consts(),
        function,
        kernel: &info.name,
        grid: spec.grid,
        block: spec.block,
        static_shared: info.static_shared,
        dynamic_shared: spec.dynamic_shared,
        dynamic_start: info.static_shared.next_multiple_of(image.program().code().dynamic_align.max(1)),
        params: spec.params,
        memory,
        textures: spec.textures,
        heap: image.heap(),
        out,
        cancel,
        start: Instant::now(),
        workspace,
        turn: if spec.cooperative { COOPERATIVE_TURN } else { TURN },
        id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
        watch: spec.watch,
    };
    let work = Work {
        launch: &launch,
        blocks,
        team: if spec.cooperative { 1 } else { team(&launch, threads, blocks, spec.threads as u64) },
        most: if spec.cooperative { usize::MAX } else { MAX_RESIDENT },
        next: AtomicU64::new(0),
        fault: Mutex::new(None),
        stop: AtomicBool::new(false),
    };
    let helpers = spec.threads.saturating_sub(1).min(usize::try_from(blocks - 1).unwrap_or(usize::MAX));
    // Blocks that wait for each other are started at once. Each OS thread starts the same number.
    let share = |os_threads: u64| if spec.cooperative { blocks.div_ceil(os_threads) as usize } else { 1 };
    if helpers == 0 {
        work.run(None, share(1));
    } else if spec.cooperative || !work.run(Some(Instant::now() + ALONE), 1) {
        let permit = pool.take(helpers);
        let share = share(permit.count as u64 + 1);
        std::thread::scope(|scope| {
            for _ in 0..permit.count {
                let name = std::thread::Builder::new().name("softgpu".to_owned());
                // If no helper can be started, the launch is only slower.
                let _ = name.spawn_scoped(scope, || computing(|| work.run(None, share)));
            }
            work.run(None, share);
        });
    }
    if workspace != 0 {
        image.heap().release(workspace);
    }
    let fault = work.fault.into_inner().unwrap_or_else(PoisonError::into_inner);
    fault.map_or(Ok(()), Err)
}

/// Allocates the memory that a driver gives the blocks of a cooperative launch, as in
/// `cooperative_groups/details/driver_abi.h`: a word with its size, and a word that counts blocks. Returns 0 if there
/// is no room.
fn grid_workspace(heap: &Heap, memory: &MemoryMap) -> u64 {
    const BYTES: u64 = 8;
    let address = heap.allocate(memory, BYTES);
    if address != 0 {
        // The counter is behind the size and starts at 0.
        Host::checked(address).write(BYTES);
    }
    address
}

/// Returns the number of blocks to run as one team, which is faster than one block after the other. Blocks that use
/// shared memory or barriers are not joined, because a team would not keep their data apart.
fn team(launch: &Launch, threads: u64, blocks: u64, os_threads: u64) -> u64 {
    let apart = launch.code.barriers || launch.static_shared + launch.dynamic_shared > 0;
    if apart || !threads.is_multiple_of(LANES as u64) || launch.grid[1] > 1 || launch.grid[2] > 1 {
        return 1;
    }
    // Leave enough teams for all OS threads.
    (TEAM / threads).min(blocks / (4 * os_threads.max(1))).max(1)
}

/// The blocks of a launch, which OS threads take in order.
struct Work<'a> {
    launch: &'a Launch<'a>,
    blocks: u64,
    team: u64,
    /// The maximum number of blocks that one OS thread keeps in progress.
    most: usize,
    next: AtomicU64,
    fault: Mutex<Option<Fault>>,
    stop: AtomicBool,
}

impl<'a> Work<'a> {
    /// Takes the next team of blocks. Returns its first block and the number of blocks.
    fn take(&self) -> Option<(u64, u32)> {
        let taken = self
            .next
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |next| (next < self.blocks).then_some(next + self.team));
        taken.ok().map(|first| (first, self.team.min(self.blocks - first) as u32))
    }

    fn give_up(&self, fault: Fault) {
        self.fault.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(fault);
        self.stop.store(true, Ordering::Release);
    }

    /// Runs blocks until none is left, and returns true. With a deadline, it may return false after the deadline when
    /// none of its blocks is in progress. The calling thread keeps `share` blocks in progress, and more if these seem
    /// to wait.
    fn run(&self, deadline: Option<Instant>, share: usize) -> bool {
        let (mut spare, mut resident) = (Vec::<Block<'a>>::new(), Vec::<Block<'a>>::new());
        let mut turns = 0;
        loop {
            if self.stop.load(Ordering::Acquire) {
                return true;
            }
            if resident.len() < share || (turns > PATIENCE && resident.len() < self.most) {
                if resident.is_empty() && deadline.is_some_and(|deadline| Instant::now() > deadline) {
                    return self.next.load(Ordering::Acquire) >= self.blocks;
                }
                match self.take() {
                    Some((first, team)) => {
                        let mut block = spare.pop().unwrap_or_else(|| Block::new(self.launch));
                        block.start(first, team);
                        resident.push(block);
                        turns = 0;
                    }
                    None if resident.is_empty() => return true,
                    None => {}
                }
            }
            turns += 1;
            let mut index = 0;
            while index < resident.len() {
                match resident[index].turn() {
                    Ok(Turn::Running) => index += 1,
                    Ok(Turn::Finished) => spare.push(resident.remove(index)),
                    Err(fault) => {
                        self.give_up(fault);
                        return true;
                    }
                }
            }
        }
    }
}
