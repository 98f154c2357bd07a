//! Kernel launches: checks of limits, parameter passing, and occupancy.

use crate::check;
use crate::engine::watch::Watch;
use crate::engine::{self, Fault, Kernel, LaunchSpec, Param};
use crate::ffi::{self, In, R};
use crate::kernels::code::{Function, Settings};
use crate::kernels::executor::Executor;
use crate::process::model::*;
use crate::streams::context::Context;
use driverapi::attributes::*;
use driverapi::constants::*;
use driverapi::errors::*;
use driverapi::registers;
use driverapi::types::{CUlaunchAttribute, CUlaunchAttributeValue};
use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

/// The shape of a launch: the sizes of grid, block and cluster, and the dynamic shared memory.
#[derive(Clone, Copy)]
pub struct Shape {
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub dynamic_shared: u32,
    /// The size of a cluster in blocks, if the launch sets it.
    pub cluster: Option<[u32; 3]>,
    /// Whether the launch is cooperative, so that all its blocks can wait for each other.
    pub cooperative: bool,
}

/// Returns the maximum bytes of dynamic shared memory for a launch.
pub fn max_dynamic_shared(kernel: &Kernel, settings: &Settings) -> u32 {
    let default = SHARED_PER_BLOCK.saturating_sub(kernel.static_shared);
    u32::try_from(settings.dynamic_shared.load(Ordering::Relaxed)).unwrap_or(default)
}

fn check(shape: &Shape, kernel: &Kernel, settings: &Settings, model: &Model) -> R {
    let within = |sizes: [u32; 3], limits: [u32; 3]| sizes.iter().zip(limits).all(|(&n, limit)| n > 0 && n <= limit);
    let threads: u64 = shape.block.iter().map(|&n| u64::from(n)).product();
    if !within(shape.grid, MAX_GRID) || !within(shape.block, MAX_BLOCK) || threads > u64::from(MAX_THREADS_PER_BLOCK) {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    if kernel.reqntid.is_some_and(|required| required != shape.block)
        || shape.dynamic_shared > max_dynamic_shared(kernel, settings)
    {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    if threads > u64::from(max_threads(kernel)) {
        return Err(registers::refusal(threads, kernel.registers));
    }
    check_cluster(shape.grid, cluster_of(shape, kernel, settings)?, kernel, settings, model)?;
    if shape.cooperative { check_cooperative(shape, kernel, settings, model) } else { Ok(()) }
}

/// Returns the cluster size of a launch. Fails if the launch and the kernel require different sizes.
pub fn cluster_of(shape: &Shape, kernel: &Kernel, settings: &Settings) -> R<[u32; 3]> {
    let set = [0, 1, 2].map(|axis| settings.cluster.required[axis].load(Ordering::Relaxed).unsigned_abs());
    let required = kernel.required_cluster.or((set != [0; 3]).then_some(set.map(|n| n.max(1))));
    match (shape.cluster, required) {
        (Some(asked), Some(required)) if asked != required => Err(CUDA_ERROR_INVALID_CLUSTER_SIZE),
        (asked, _) => Ok(asked.or(required).unwrap_or([1; 3])),
    }
}

/// Returns the maximum number of blocks in a cluster of this kernel.
pub fn largest_cluster(kernel: &Kernel, settings: &Settings, model: &Model) -> u32 {
    let any_size = settings.cluster.non_portable.load(Ordering::Relaxed) != 0;
    let device = if any_size { model.largest_cluster } else { model.portable_cluster };
    kernel.max_cluster.unwrap_or(device).min(device)
}

/// Checks the cluster of a launch. CUDA documents error 912 for each misuse of clusters.
fn check_cluster(grid: [u32; 3], cluster: [u32; 3], kernel: &Kernel, settings: &Settings, model: &Model) -> R {
    let blocks: u64 = cluster.iter().map(|&n| u64::from(n)).product();
    if blocks == 1 {
        return Ok(());
    }
    // NVIDIA's libraries expect a newer GPU than programs do, and launch some kernels with clusters that the kernels do
    // not need.
    if model.portable_cluster == 1 {
        return if kernel.ignores_clusters { Ok(()) } else { Err(CUDA_ERROR_NOT_SUPPORTED) };
    }
    let fits = blocks > 0 && blocks <= u64::from(largest_cluster(kernel, settings, model));
    let divides = fits && grid.iter().zip(cluster).all(|(n, part)| n.is_multiple_of(part));
    if divides { Ok(()) } else { Err(CUDA_ERROR_INVALID_CLUSTER_SIZE) }
}

fn check_cooperative(shape: &Shape, kernel: &Kernel, settings: &Settings, model: &Model) -> R {
    let threads = shape.block.iter().product();
    let each = blocks_per_multiprocessor(kernel, settings, threads, shape.dynamic_shared.into(), model);
    let blocks: u64 = shape.grid.iter().map(|&n| u64::from(n)).product();
    let fits = blocks <= u64::from(each) * u64::from(model.multiprocessors);
    if fits { Ok(()) } else { Err(CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE) }
}

pub fn max_threads(kernel: &Kernel) -> u32 {
    kernel.max_threads.min(MAX_THREADS_PER_BLOCK)
}

/// Returns the number of a kernel's blocks that one multiprocessor of this model can hold at a time.
pub fn blocks_per_multiprocessor(
    kernel: &Kernel,
    settings: &Settings,
    threads: u32,
    dynamic_shared: u64,
    model: &Model,
) -> u32 {
    let shared = u64::from(kernel.static_shared) + dynamic_shared;
    if threads == 0 || threads > max_threads(kernel) || dynamic_shared > u64::from(max_dynamic_shared(kernel, settings))
    {
        return 0;
    }
    let threads = threads.next_multiple_of(WARP);
    let by_shared = u64::from(model.shared_per_multiprocessor) / (shared + u64::from(SHARED_RESERVED_PER_BLOCK));
    let by_registers = REGISTERS / (settings.registers(kernel).max(1) * threads);
    (MAX_THREADS_PER_MULTIPROCESSOR / threads)
        .min(MAX_BLOCKS_PER_MULTIPROCESSOR)
        .min(by_registers)
        .min(u32::try_from(by_shared).unwrap_or(u32::MAX))
}

/// The parameters that the program passed: one address for each parameter, or one packed buffer.
#[derive(Clone, Copy)]
pub struct Arguments {
    pub each: In<*const u8>,
    pub extra: In<usize>,
}

impl Arguments {
    /// Copies the parameters to one buffer, because the program may reuse its own memory after the call.
    fn pack(self, kernel: &Kernel) -> R<Vec<u8>> {
        if !self.each.is_null() && !self.extra.is_null() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let size = kernel.param_bytes as usize;
        if size == 0 {
            return Ok(Vec::new());
        }
        if !self.each.is_null() {
            return pack_each(&kernel.params, size, &self.each.list(kernel.params.len())?);
        }
        let (address, given) = self.packed_buffer()?;
        let mut buffer = ffi::bytes(address, given.min(size))?;
        buffer.resize(size, 0);
        Ok(buffer)
    }

    fn packed_buffer(self) -> R<(*const u8, usize)> {
        let (mut address, mut size) = (None, None);
        let mut rest = self.extra.address();
        loop {
            match In::at(rest).get()? {
                CU_LAUNCH_PARAM_END => break,
                CU_LAUNCH_PARAM_BUFFER_POINTER => address = Some(In::at(rest.wrapping_add(1)).get()?),
                CU_LAUNCH_PARAM_BUFFER_SIZE => {
                    let at: *const usize = std::ptr::with_exposed_provenance(In::at(rest.wrapping_add(1)).get()?);
                    size = Some(In::at(at).get()?);
                }
                _ => return Err(CUDA_ERROR_INVALID_VALUE),
            }
            rest = rest.wrapping_add(2);
        }
        let address = std::ptr::with_exposed_provenance(address.ok_or(CUDA_ERROR_INVALID_VALUE)?);
        Ok((address, size.ok_or(CUDA_ERROR_INVALID_VALUE)?))
    }
}

fn pack_each(params: &[Param], size: usize, addresses: &[*const u8]) -> R<Vec<u8>> {
    let mut buffer = vec![0; size];
    for (param, &address) in params.iter().zip(addresses) {
        let range = param.offset as usize..(param.offset + param.size) as usize;
        let slot = buffer.get_mut(range).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        slot.copy_from_slice(&ffi::bytes(address, slot.len())?);
    }
    Ok(buffer)
}

fn kernel_params(function: &Function) -> &[Param] {
    &function.kernel().params
}

/// Returns the addresses of the parameters in a buffer. The buffer must not be moved afterwards.
fn addresses(params: &[Param], buffer: &[u8]) -> Vec<usize> {
    let start = buffer.as_ptr().expose_provenance();
    params.iter().map(|param| start + param.offset as usize).collect()
}

/// Returns the shape with an attribute added. Attributes for tuning are ignored. An attribute that a kernel may rely on
/// becomes part of the shape, or is refused.
pub fn with_attribute(shape: Shape, attribute: &CUlaunchAttribute) -> R<Shape> {
    // SAFETY: every bit pattern is a valid value of these plain integers.
    let (switch, cluster) = unsafe { (attribute.value.scalar, attribute.value.clusterDim) };
    match attribute.id {
        CU_LAUNCH_ATTRIBUTE_COOPERATIVE => Ok(Shape { cooperative: switch != 0, ..shape }),
        CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION => {
            Ok(Shape { cluster: Some([cluster.x, cluster.y, cluster.z]), ..shape })
        }
        CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE => Err(CUDA_ERROR_NOT_SUPPORTED),
        _ => Ok(shape),
    }
}

/// A kernel with its checked shape and parameters, ready to run.
pub struct Launch {
    pub function: Arc<Function>,
    pub shape: Shape,
    /// The buffer with all parameters.
    pub params: Vec<u8>,
    /// The addresses of the parameters in the buffer.
    pointers: Vec<usize>,
    /// The attributes that queries return, by number.
    kept: Vec<(u32, [u8; 64])>,
    executor: &'static Executor,
    context: Arc<Context>,
}

impl Launch {
    /// # Errors
    /// Each error that the driver returns at the call of a launch.
    pub fn new(
        executor: &'static Executor,
        function: &Arc<Function>,
        shape: Shape,
        arguments: Arguments,
        context: &Arc<Context>,
    ) -> R<Launch> {
        if function.module.context != context.id {
            return Err(CUDA_ERROR_INVALID_HANDLE);
        }
        let kernel = function.kernel();
        function.load(context)?;
        check(&shape, kernel, &function.settings, context.device.model)?;
        let params = arguments.pack(kernel)?;
        if function.module.program().uses_heap() {
            context.uses_heap.store(true, Ordering::Relaxed);
        }
        let (function, context) = (Arc::clone(function), Arc::clone(context));
        let pointers = addresses(kernel_params(&function), &params);
        Ok(Launch { function, shape, params, pointers, kept: Vec::new(), executor, context })
    }

    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Returns an array with one pointer for each parameter, as `cuLaunchKernel` takes it. It is valid while this
    /// launch exists.
    pub fn pointers(&self) -> *mut *mut c_void {
        self.pointers.as_ptr().cast_mut().cast()
    }

    /// Returns the bytes of an attribute, all 0 if the attribute was not set.
    pub fn attribute(&self, id: u32) -> [u8; 64] {
        let known = self.attributes().into_iter().find(|each| each.id == id);
        // SAFETY: every bit pattern is a value of these bytes.
        known.map_or([0; 64], |each| unsafe { each.value.pad })
    }

    /// Returns the attributes that were set, for queries.
    pub fn attributes(&self) -> Vec<CUlaunchAttribute> {
        let attribute = |id, pad| CUlaunchAttribute { id, pad: [0; 4], value: CUlaunchAttributeValue { pad } };
        let mut all: Vec<_> = self.kept.iter().map(|&(id, pad)| attribute(id, pad)).collect();
        if self.shape.cooperative {
            let mut pad = [0; 64];
            pad[0] = 1;
            all.push(attribute(CU_LAUNCH_ATTRIBUTE_COOPERATIVE, pad));
        }
        if let Some(cluster) = self.shape.cluster {
            let mut pad = [0; 64];
            for (bytes, size) in pad.chunks_exact_mut(4).zip(cluster) {
                bytes.copy_from_slice(&size.to_le_bytes());
            }
            all.push(attribute(CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, pad));
        }
        all
    }

    /// Returns the same launch with more attributes.
    ///
    /// # Errors
    /// The errors of [`Launch::new`] with these attributes.
    pub fn with_attributes(&self, more: &[CUlaunchAttribute]) -> R<Launch> {
        let shape = more.iter().try_fold(self.shape, with_attribute)?;
        check(&shape, self.function.kernel(), &self.function.settings, self.context.device.model)?;
        let mut kept = self.kept.clone();
        for each in more {
            if !matches!(each.id, CU_LAUNCH_ATTRIBUTE_COOPERATIVE | CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) {
                kept.retain(|(id, _)| *id != each.id);
                // SAFETY: as above.
                kept.push((each.id, unsafe { each.value.pad }));
            }
        }
        let (function, context, params) = (Arc::clone(&self.function), Arc::clone(&self.context), self.params.clone());
        let pointers = addresses(kernel_params(&function), &params);
        Ok(Launch { function, shape, params, pointers, kept, executor: self.executor, context })
    }

    fn pause(&self) -> Duration {
        Duration::from_micros(self.context.profile().launch_micros)
    }

    /// Whether the launch takes no time, so that it can run in the calling thread.
    pub fn is_nothing(&self) -> bool {
        self.context.device.model.null && self.pause().is_zero()
    }

    pub fn run(&self) -> Result<(), Fault> {
        thread::sleep(self.pause());
        if self.context.device.model.null {
            let Some(rules) = &self.executor.rules else { return Ok(()) };
            return rules.apply(&self.executor.memory, self.function.kernel(), self.shape.grid, &self.params);
        }
        let checked = check::current();
        if let Some(operation) = &checked {
            operation.name(&format!("kernel '{}'", self.function.kernel().name));
        }
        let spec = LaunchSpec {
            grid: self.shape.grid,
            block: self.shape.block,
            dynamic_shared: self.shape.dynamic_shared,
            params: &self.params,
            textures: &self.executor.textures,
            cooperative: self.shape.cooperative,
            threads: self.executor.threads,
            watch: checked.as_deref().map(|operation| operation as &dyn Watch),
        };
        let (image, context, device) = (&self.function.module.image, &self.context, &self.context.device);
        device.running.fetch_add(1, Ordering::Relaxed);
        let (workers, printed) = (&self.executor.workers, &context.printed);
        let done = engine::launch(image, self.function.index, &spec, &device.map, workers, printed, &context.cancel);
        device.running.fetch_sub(1, Ordering::Relaxed);
        done
    }
}

/// Converts the two pointer arguments of `cuLaunchKernel`, of which a program uses one to pass parameters.
pub fn arguments(each: *mut *mut c_void, extra: *mut *mut c_void) -> Arguments {
    Arguments { each: In::at(each.cast()), extra: In::at(extra.cast()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::code::ClusterSettings;
    use std::sync::atomic::{AtomicI32, AtomicU32};

    fn kernel() -> Kernel {
        Kernel {
            name: "k".to_owned(),
            architecture: 80,
            params: vec![Param { offset: 0, size: 4, align: 4 }, Param { offset: 8, size: 8, align: 8 }],
            param_bytes: 16,
            static_shared: 1024,
            local_bytes: 0,
            registers: 32,
            max_threads: 256,
            reqntid: None,
            required_cluster: None,
            max_cluster: None,
            ignores_clusters: false,
            unsupported: None,
        }
    }

    fn settings() -> Settings {
        Settings {
            dynamic_shared: AtomicI32::new(-1),
            carveout: AtomicI32::new(-1),
            cache_config: AtomicU32::new(0),
            cluster: ClusterSettings::default(),
            max_registers: None,
        }
    }

    fn verdict(grid: [u32; 3], block: [u32; 3], dynamic_shared: u32) -> R {
        check(&shape(grid, block, dynamic_shared), &kernel(), &settings(), &Model::SOFTWARE)
    }

    fn shape(grid: [u32; 3], block: [u32; 3], dynamic_shared: u32) -> Shape {
        Shape { grid, block, dynamic_shared, cluster: None, cooperative: false }
    }

    /// Checks a launch of `blocks` blocks in clusters, on a GPU that has clusters.
    fn clustered(blocks: u32, cluster: Option<[u32; 3]>, change: impl Fn(&mut Kernel, &Settings)) -> R {
        let (mut kernel, settings) = (kernel(), settings());
        change(&mut kernel, &settings);
        let shape = Shape { cluster, ..shape([blocks, 1, 1], [32, 1, 1], 0) };
        check(&shape, &kernel, &settings, &Model::NULL_H100)
    }

    #[test]
    fn clusters_divide_the_grid_and_are_as_large_as_kernel_and_device_allow() {
        let wrong = Err(CUDA_ERROR_INVALID_CLUSTER_SIZE);
        let as_is = |_: &mut Kernel, _: &Settings| ();
        assert_eq!(clustered(16, Some([8, 1, 1]), as_is), Ok(()));
        assert_eq!(clustered(12, Some([8, 1, 1]), as_is), wrong);
        assert_eq!(clustered(16, Some([0, 1, 1]), as_is), wrong);
        assert_eq!(clustered(16, Some([16, 1, 1]), as_is), wrong);
        let any_size = |_: &mut Kernel, s: &Settings| s.cluster.non_portable.store(1, Ordering::Relaxed);
        assert_eq!(clustered(16, Some([16, 1, 1]), any_size), Ok(()));
        assert_eq!(clustered(32, Some([32, 1, 1]), any_size), wrong);
        let at_most_4 = |k: &mut Kernel, _: &Settings| k.max_cluster = Some(4);
        assert_eq!(clustered(16, Some([8, 1, 1]), at_most_4), wrong);
        assert_eq!(clustered(16, Some([4, 1, 1]), at_most_4), Ok(()));
        let of_2 = |k: &mut Kernel, _: &Settings| k.required_cluster = Some([2, 1, 1]);
        assert_eq!(clustered(16, None, of_2), Ok(()));
        assert_eq!(clustered(15, None, of_2), wrong);
        assert_eq!(clustered(16, Some([4, 1, 1]), of_2), wrong);
    }

    #[test]
    fn a_cooperative_launch_must_fit_the_device_at_once() {
        let verdict = |blocks, model| {
            let shape = Shape { cooperative: true, ..shape([blocks, 1, 1], [256, 1, 1], 0) };
            check(&shape, &kernel(), &settings(), model)
        };
        assert_eq!(verdict(8 * 132, &Model::NULL_H100), Ok(()));
        assert_eq!(verdict(8 * 132 + 1, &Model::NULL_H100), Err(CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE));
        assert_eq!(verdict(8 * 16, &Model::SOFTWARE), Ok(()));
        assert_eq!(verdict(8 * 16 + 1, &Model::SOFTWARE), Err(CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE));
    }

    #[test]
    fn launches_are_held_to_the_devices_limits() {
        assert_eq!(verdict([1, 1, 1], [256, 1, 1], 47 << 10), Ok(()));
        assert_eq!(verdict([0, 1, 1], [32, 1, 1], 0), Err(CUDA_ERROR_INVALID_VALUE));
        assert_eq!(verdict([1, 65536, 1], [32, 1, 1], 0), Err(CUDA_ERROR_INVALID_VALUE));
        assert_eq!(verdict([1, 1, 1], [1024, 2, 1], 0), Err(CUDA_ERROR_INVALID_VALUE));
        assert_eq!(verdict([1, 1, 1], [512, 1, 1], 0), Err(CUDA_ERROR_INVALID_VALUE), "launch bounds");
        let registers = |registers| Kernel { registers, ..kernel() };
        let of = |kernel| check(&shape([1, 1, 1], [512, 1, 1], 0), &kernel, &settings(), &Model::SOFTWARE);
        assert_eq!(of(registers(128)), Err(CUDA_ERROR_INVALID_VALUE));
        assert_eq!(of(registers(129)), Err(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES));
        assert_eq!(verdict([1, 1, 1], [32, 1, 1], 48 << 10), Err(CUDA_ERROR_INVALID_VALUE));
    }

    #[test]
    fn parameters_are_packed_by_offset_either_way() {
        let (a, b) = (7u32, 9u64);
        let each = [(&raw const a).cast::<u8>(), (&raw const b).cast::<u8>()];
        let packed =
            Arguments { each: In::at(each.as_ptr()), extra: In::at(std::ptr::null()) }.pack(&kernel()).unwrap();
        assert_eq!(packed, [7, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0]);

        let size = packed.len();
        let extra = [1, packed.as_ptr() as usize, 2, &raw const size as usize, 0];
        let again =
            Arguments { each: In::at(std::ptr::null()), extra: In::at(extra.as_ptr()) }.pack(&kernel()).unwrap();
        assert_eq!(again, packed);
        let neither = Arguments { each: In::at(std::ptr::null()), extra: In::at(std::ptr::null()) };
        assert_eq!(neither.pack(&kernel()), Err(CUDA_ERROR_INVALID_VALUE));
    }

    #[test]
    fn occupancy_is_bound_by_the_scarcest_resource() {
        let blocks =
            |threads, shared| blocks_per_multiprocessor(&kernel(), &settings(), threads, shared, &Model::SOFTWARE);
        assert_eq!(blocks(256, 0), 8);
        assert_eq!(blocks(32, 0), 32);
        assert_eq!(blocks(32, 39 << 10), 4);
        assert_eq!(blocks(512, 0), 0);
    }
}
