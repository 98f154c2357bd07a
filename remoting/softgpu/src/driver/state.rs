//! The tables of all objects that have a handle.

use crate::ffi::{R, print};
use crate::kernels::code::{Function, KernelHandle, Library, Module};
use crate::kernels::executor::Executor;
use crate::kernels::link::Link;
use crate::kernels::rules::Rules;
use crate::memory::allocations::Memory;
use crate::memory::arrays::{Array, Described};
use crate::memory::frames::Frames;
use crate::memory::physical::Physical;
use crate::memory::pool::Pool;
use crate::process::config::Config;
use crate::process::device::Device;
use crate::process::handles::{self, Table};
use crate::process::model::Model;
use crate::streams::context::Context;
use crate::streams::stream::{Event, Stream};
use crate::work::{Condition, Executable, Work};
use driverapi::errors::*;
use driverapi::managed::Advised;
use driverapi::types::CUdevice;
use graphs::Registry;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Instant;

pub struct Driver {
    pub config: Config,
    /// The file that holds the devices' memory, if the settings name one.
    pub frames: Option<Arc<Frames>>,
    pub devices: Vec<Arc<Device>>,
    pub executor: Executor,
    pub memory: Arc<Memory>,
    pub contexts: Table<Context>,
    pub streams: Table<Stream>,
    pub events: Table<Event>,
    pub modules: Table<Module>,
    pub functions: Table<Function>,
    pub libraries: Table<Library>,
    pub kernels: Table<KernelHandle>,
    pub links: Table<Link>,
    pub pools: Table<Pool>,
    pub arrays: Table<Array>,
    pub described: Table<Described>,
    /// The conditions, by the addresses of their values.
    pub conditions: Table<Condition>,
    pub physical: Table<Physical>,
    /// The advice for managed memory, by the allocation's id.
    pub advised: Mutex<HashMap<u64, Advised>>,
    pub graphs: Registry<Work>,
    pub executables: Table<Executable>,
    /// The address ranges that `cuMemAddressReserve` returned, from base to length in bytes.
    pub reservations: Mutex<HashMap<u64, u64>>,
    pub start: Instant,
    pub(super) primaries: Vec<Mutex<Primary>>,
    pub(super) current_pools: Vec<Mutex<usize>>,
}

/// The number of times that a device's primary context is retained, and the flags for the next time it starts.
#[derive(Default)]
pub(super) struct Primary {
    pub(super) retained: usize,
    pub(super) flags: u32,
}

impl Driver {
    pub(super) fn new(config: Config) -> R<Driver> {
        let cards = config.visible_devices();
        if cards.is_empty() {
            return Err(CUDA_ERROR_NO_DEVICE);
        }
        let devices: Vec<Arc<Device>> =
            cards.iter().enumerate().map(|(ordinal, &card)| Arc::new(Device::new(&config, card, ordinal))).collect();
        let frames = config.physical.as_ref().map(|path| Frames::open(path, config.memory, config.uuids.len()));
        let rules = config.rules.as_ref().map(|file| Rules::open(file, config.tally.as_deref()));
        let rules = rules.transpose().map_err(|why| {
            print(&format!("remotegpu: {why}"));
            CUDA_ERROR_INVALID_VALUE
        })?;
        let pools = Table::default();
        for device in &devices {
            pools.insert(device.pool, Arc::new(Pool::new(device.pool, device.ordinal, 0)));
        }
        let memory = Arc::new(Memory::new(devices.clone())?);
        Ok(Driver {
            executor: Executor::new(config.threads, Arc::clone(&memory), rules),
            memory,
            contexts: Table::default(),
            streams: Table::default(),
            events: Table::default(),
            modules: Table::default(),
            functions: Table::default(),
            libraries: Table::default(),
            kernels: Table::default(),
            links: Table::default(),
            arrays: Table::default(),
            described: Table::default(),
            conditions: Table::default(),
            physical: Table::default(),
            advised: Mutex::default(),
            graphs: Registry::new(handles::mint),
            executables: Table::default(),
            reservations: Mutex::default(),
            start: Instant::now(),
            primaries: devices.iter().map(|_| Mutex::default()).collect(),
            current_pools: devices.iter().map(|device| Mutex::new(device.pool)).collect(),
            pools,
            devices,
            frames: frames.transpose()?,
            config,
        })
    }

    /// The GPU model that every device reports.
    pub fn model(&self) -> &'static Model {
        self.config.profile.model
    }

    pub fn device(&self, ordinal: CUdevice) -> R<&Arc<Device>> {
        usize::try_from(ordinal).ok().and_then(|i| self.devices.get(i)).ok_or(CUDA_ERROR_INVALID_DEVICE)
    }
}
